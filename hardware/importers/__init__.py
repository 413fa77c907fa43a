"""Importers: what tools print about real machines, as clusters. Start with :mod:`hardware.importers.topology`."""
