"""Accelerators as they were measured: slow ones, what they cost, and a running layout placed anew."""
