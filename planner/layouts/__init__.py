"""Layouts spelled out: grids of degrees, recompute choices, splits of the layers, and their neighbours."""
