"""When nothing fits: the tightest constraint, the changes that mend it, and how few accelerators would do."""
