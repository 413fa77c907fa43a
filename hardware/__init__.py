"""What the machine is: accelerators, links, nodes, clusters, topology and cooling."""
