"""The workload: a model as layer kinds, each layer as ops, with parameters, FLOPs and saved activations."""
