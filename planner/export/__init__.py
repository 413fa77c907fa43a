"""Plans as launches of a framework: pure functions from a layout to arguments, tables and files."""
