"""What a choice costs: pure functions from a workload and a layout to seconds, bytes, watts and degrees."""
