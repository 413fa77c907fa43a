"""The search itself: uniform grids, mixed strategies by two levels, islands of unlike machines, refined splits."""
