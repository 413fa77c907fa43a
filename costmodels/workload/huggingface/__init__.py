"""Hugging Face configurations read into what a model is: one door, and families by what sets them apart."""
