"""Programs built on the frameworks, read in the words of the framework that trains under them."""
