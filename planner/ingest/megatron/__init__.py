"""Megatron-LM's arguments read into what they launch, and its options as a table."""
