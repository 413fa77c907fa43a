"""Reading what others launch: arguments of a framework turned into grids, splits and layouts."""
