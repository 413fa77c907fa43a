"""What a reader asks of a layout that was found: where its time goes, what would change it, what to do next."""
