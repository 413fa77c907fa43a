"""Lower bounds on time and memory that hold for whole families of layouts: what the search drops before it prices."""
