"""Accelerators by the names that drivers and schedulers give them."""

import re

from hardware import catalog, catalog_store
from hardware.catalog_schema import canonical


def accelerator_in(device: str) -> str:
    """Return the catalogue's name of a device as the driver names it, such as ``NVIDIA H100 80GB HBM3``."""
    found = catalog_store.locate(device, catalog_store.ACCELERATOR_FILES)
    if found is not None:
        return found[1]
    plain = re.sub(r"^((NVIDIA|Tesla|AMD|Instinct)\s+)+", "", device.strip(), flags=re.IGNORECASE)
    plain = canonical(plain).replace("sxm4", "sxm").replace("sxm5", "sxm")
    names = catalog.accelerator_names()
    close = [name for name in names if canonical(name) == plain]
    stems = [canonical(name.partition("-")[0]) for name in names]
    longest = max((stem for stem in stems if plain.startswith(stem)), key=len, default="")
    close = close or [name for name, stem in zip(names, stems, strict=True) if longest and stem == longest]
    same_size = [name for name in close if (size := re.search(r"\d+gb", plain)) and size[0] in canonical(name)]
    preferred = [name for name in (same_size or close) if "pcie" in name] if "pcie" in plain else []
    chosen = preferred or [name for name in (same_size or close) if "pcie" not in name and "nvl" not in name]
    return chosen[0] if chosen else ""
