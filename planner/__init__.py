"""What we choose: search, placement, legality, export and reports on top of the cost models."""
