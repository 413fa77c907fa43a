"""The page on machines: its examples load, and it leaves out no key."""

import re
from pathlib import Path

import pytest

from hardware import catalog_schema as schema
from hardware.cluster import CoolingKind, FabricShape, LinkKind
from hardware.cluster_file import parse_cluster

PAGE = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_load(block: str) -> None:
    assert parse_cluster(block, "docs/hardware.md", "example").gpus > 0


def test_every_key_and_choice_is_described() -> None:
    assert len(BLOCKS) >= 2
    tables = (
        schema.ACCELERATOR,
        schema.SCALE_UP,
        schema.NICS,
        schema.HOST,
        schema.COOLING,
        schema.NODE,
        schema.FABRIC_TIER,
        schema.ISLAND,
        schema.DEVICE,
        schema.CLUSTER,
    )
    for key in {entry.key for table in tables for entry in table}:
        assert f"`{key}`" in PAGE, key
    for choice in (*LinkKind, *FabricShape, *CoolingKind):
        assert f"`{choice.value}`" in PAGE, choice
