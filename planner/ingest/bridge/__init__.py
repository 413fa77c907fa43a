"""Overrides, recipes and programs of Megatron-Bridge and NeMo 2."""
