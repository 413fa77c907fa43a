"""Many questions at once: sweep files and the rows they answer."""
