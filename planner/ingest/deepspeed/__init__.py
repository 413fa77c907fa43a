"""DeepSpeed's configuration read into the layout that it launches."""
