"""Measured runs: read, priced, compared with predictions, and how near a request is to them."""
