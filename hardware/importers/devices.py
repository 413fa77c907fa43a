"""Which accelerator a device, a compute capability or a link count means."""

from collections.abc import Mapping
from typing import Any, Final

from hardware.cluster import LinkKind
from hardware.package_table import package_table

UNKNOWN: Final = "? "
"""Marks the name of a part that the catalogue lacks."""
RACK_ACCELERATOR: Final = "gb200"
"""Assumed where NVLink domains span nodes, and of GPUs behind NVSwitches beside Grace processors."""
SUPERCHIP: Final = "gh200-96gb"
"""Assumed of other GPUs beside Grace processors."""
_KIND_OF_NAME: Final = (
    ("cxi", LinkKind.SLINGSHOT),
    ("rdmap", LinkKind.EFA),
    ("efa", LinkKind.EFA),
    ("roce", LinkKind.ROCE),
    ("bnxt", LinkKind.ROCE),
    ("irdma", LinkKind.ROCE),
    ("ibp", LinkKind.INFINIBAND),
    ("ib", LinkKind.INFINIBAND),
    ("eth", LinkKind.ETHERNET),
    ("en", LinkKind.ETHERNET),
    ("bond", LinkKind.ETHERNET),
)


def _tables() -> Mapping[str, Mapping[str, Any]]:
    return package_table("hardware.importers", "devices.toml")


def by_pci(vendor: str, device: str) -> str:
    """Return the part of a PCI vendor and device (``0x10de``, ``0x2330``): a catalogue name, or one after UNKNOWN."""
    key = f"{vendor.casefold().removeprefix('0x')}:{device.casefold().removeprefix('0x')}"
    return str(_tables()["pci"].get(key, ""))


def by_compute_capability(capability: str) -> str:
    """Return the usual NVIDIA part of a compute capability such as ``90``; empty if none is known."""
    return str(_tables()["compute_capability"].get(capability, ""))


def by_gcn(architecture: str) -> str:
    """Return the usual AMD part of an architecture such as ``gfx942`` or ``910``; empty if none is known."""
    return str(_tables()["gcn"].get(architecture, ""))


def nvlinks(accelerator: str) -> tuple[int, float]:
    """Return how many NVLinks an accelerator has and what one carries [bytes/s, one direction]; (0, 0.0) if unknown."""
    for prefix, entry in sorted(_tables()["nvlinks"].items(), key=lambda item: -len(item[0])):
        if accelerator.startswith(prefix):
            return int(entry["count"]), float(entry["gb_per_s"]) * 1e9
    return 0, 0.0


def kind_of_adapter(name: str) -> LinkKind | None:
    """Return what the name of an adapter says of its network; ``mlx5_0`` may be InfiniBand or RoCE: None."""
    lowered = name.casefold()
    return next((kind for prefix, kind in _KIND_OF_NAME if lowered.startswith(prefix)), None)


def by_link_count(links_per_gpu: int, gpus: int) -> str:
    """Return the usual part with so many NVLinks in nodes of three and more GPUs; empty where several are as likely."""
    usual = {6: "v100-sxm2-16gb", 12: "a100-sxm-80gb", 18: "h100-sxm-80gb"}
    return usual.get(links_per_gpu, "") if gpus > 2 else ""
