"""Cluster files: what they may say, what they refuse and how, and that written clusters read back the same."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.efficiency import default_efficiency
from costmodels.power.accelerator import power_model
from hardware import catalog
from hardware.catalog_checks import check_cluster
from hardware.cluster import (
    Accelerator,
    Cluster,
    Cooling,
    CoolingKind,
    DeviceState,
    FabricShape,
    FabricTier,
    Host,
    Island,
    LinkKind,
    Nics,
    NodeType,
    PeakRates,
    ScaleUp,
)
from hardware.cluster_file import parse_cluster, read_cluster_file, to_toml
from hardware.errors import InputError
from hardware.text_file import MOST_BYTES
from hardware.tiers import island_tiers

EXAMPLES = sorted((Path(__file__).parent.parent / "examples" / "clusters").glob("*.toml"))


def parsed(text: str) -> Cluster:
    return parse_cluster(text, "lab.toml", "lab")


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(text)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_and_survive_writing(path: Path) -> None:
    machine = catalog.cluster(str(path))
    assert machine.gpus > 0
    assert all(island_tiers(island) for island in machine.islands)
    assert parse_cluster(to_toml(machine), "written.toml", "other name") == machine


def test_examples_exist() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("name", [*catalog.node_type_names(), *catalog.fixed_cluster_names()])
def test_presets_survive_writing(name: str) -> None:
    machine = catalog.cluster(name if name in catalog.fixed_cluster_names() else f"{name}:3")
    assert parse_cluster(to_toml(machine), "written.toml", "other name") == machine


def test_a_preset_and_overrides() -> None:
    machine = parsed(
        """
        electricity_per_kwh = 0.2
        pue = 1.3
        [[island]]
        node = "DGX H100"
        nodes = 20
        gpus = 7
        gpu_power_cap_w = 500
        price_per_hour = 20
        [island.nics]
        count = 4
        gpudirect = false
        [island.cooling]
        inlet_c = 35
        [[island.fabric]]
        nodes = 5
        oversubscription = 3
        [[island.fabric]]
        nodes = 0
        """
    )
    island = machine.islands[0]
    node = island.node
    assert (machine.name, machine.gpus, machine.pue) == ("lab", 140, 1.3)
    assert (node.gpus, node.scale_up.domain_gpus, node.nics.count, node.nics.gpudirect) == (7, 7, 4, False)
    assert node.nics.bytes_per_s == 50e9  # not overridden
    assert node.cooling.rows == ((0, 2, 4), (1, 3, 5, 6))
    assert (node.cooling.inlet_c, node.gpu_power_cap_w, node.price_per_hour) == (35.0, 500.0, 20.0)
    assert [tier.gpus for tier in island_tiers(island)] == [7, 35, 140]
    assert any("stated in the cluster file" in source for source in node.sources)


def test_units_are_converted_once() -> None:
    machine = parsed(
        """
        inter_island_gbit_per_s = 8
        [[accelerator]]
        name = "x"
        peak_bf16_tflops = 1.5
        memory_mib = 1024
        memory_gb_per_s = 2
        base_clock_mhz = 3
        [[island]]
        name = "n"
        accelerator = "x"
        gpus = 1
        nodes = 1
        scale_up = {kind = "nvlink", shape = "switch", domain_gpus = 1, gb_per_s = 4, latency_us = 5}
        nics = {kind = "roce", count = 1, gbit_per_s = 8, latency_us = 6}
        host = {memory_gb = 7}
        [[island]]
        name = "n"
        accelerator = "x"
        gpus = 1
        nodes = 1
        scale_up = {kind = "nvlink", shape = "switch", domain_gpus = 1, gbit_per_s = 32, latency_us = 5}
        nics = {kind = "roce", count = 1, gb_per_s = 1, latency_us = 6}
        host = {memory_gib = 1}
        """
    )
    first, second = (island.node for island in machine.islands)
    part = first.accelerator
    assert (part.peak.bf16, part.memory_bytes, part.memory_bytes_per_s) == (1.5e12, 2.0**30, 2e9)
    assert part.base_clock_hz == 3e6
    assert first.scale_up == second.scale_up
    assert (first.scale_up.bytes_per_s, first.scale_up.pair_bytes_per_s, first.scale_up.latency_s) == (4e9, 4e9, 5e-6)
    assert first.nics == second.nics
    assert (first.nics.bytes_per_s, machine.inter_island_bytes_per_s) == (1e9, 1e9)
    assert (first.host.memory_bytes, second.host.memory_bytes) == (7e9, 2.0**30)


def test_a_device_without_gpu_is_all_of_its_node() -> None:
    """A supply fault slows a node: the other one stays as it is."""
    (island,) = parsed(ISLAND + "[[island.device]]\nnode = 1\nspeed = 0.25\n").islands
    assert island.devices == tuple(DeviceState(node=1, gpu=gpu, speed=0.25) for gpu in range(8))


def test_definitions_of_a_file_hide_the_catalogue() -> None:
    machine = parsed(
        """
        [[accelerator]]
        name = "h100"
        like = "h100"
        memory_gb_per_s = 1000
        [[node_type]]
        name = "dgx-h100"
        like = "dgx-h100"
        accelerator = "H100"
        [[island]]
        node = "DGX_H100"
        nodes = 1
        """
    )
    part = machine.islands[0].node.accelerator
    assert (part.name, part.memory_bytes_per_s) == ("h100", 1e12)
    assert part.peak == catalog.accelerator("h100").peak


LIKE = """
[[accelerator]]
name = "big"
like = "a100-sxm-80gb"
{}
[[accelerator]]
name = "bigger"
like = "big"
[[island]]
node = "dgx-a100"
accelerator = "{}"
nodes = 1
"""


@pytest.mark.parametrize("name", ["big", "bigger"])
def test_a_part_of_another_name_keeps_the_constants_of_what_it_is_like(name: str) -> None:
    machine = parsed(LIKE.format("", name))
    part, known = machine.islands[0].node.accelerator, catalog.accelerator("a100-sxm-80gb")
    assert default_efficiency().generation(part).name == default_efficiency().generation(known).name == "ampere"
    assert power_model(part) == power_model(known)
    assert parsed(to_toml(machine)) == machine


def test_memory_and_limit_that_a_part_states_count_at_what_follows_from_them() -> None:
    part = parsed(LIKE.format("memory_gib = 160\ntdp_w = 800", "big")).islands[0].node.accelerator
    known = catalog.accelerator("a100-sxm-80gb")
    assert part.allocatable_bytes / part.memory_bytes == pytest.approx(known.allocatable_bytes / known.memory_bytes)
    assert part.max_power_limit_w == 800
    stated = parsed(LIKE.format("memory_gib = 160\nallocatable_gib = 150", "big")).islands[0].node.accelerator
    assert stated.allocatable_bytes == 150 * 2**30


@pytest.mark.parametrize(
    ("node", "rate", "pair"), [("dgx-h100", 200, 200), ("dgx-h100", 900, 900), ("mi300x-8", 224, 32)]
)
def test_the_rate_to_one_peer_follows_that_of_all(node: str, rate: float, pair: float) -> None:
    fabric = (
        parsed(f'[[island]]\nnode = "{node}"\nnodes = 1\nscale_up = {{gb_per_s = {rate}}}').islands[0].node.scale_up
    )
    assert (fabric.bytes_per_s, fabric.pair_bytes_per_s) == (pytest.approx(rate * 1e9), pytest.approx(pair * 1e9))


ISLAND = '[[island]]\nnode = "dgx-h100"\nnodes = 2\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no [[island]]"),
        ("island = 3", "lab.toml: island: 3 is not an array of tables"),
        ("[island]\nnode = 'dgx-h100'", "is not an array of tables"),
        ("island = []", "the cluster has no machines"),
        ("[[island]]\nnodes = 2", "'node' is missing"),
        ("[[island]]\nnode = 'dgx-h100'", "'nodes' is missing"),
        ("[[island]]\nnode = 'dgx-h10O'\nnodes = 2", "unknown node type 'dgx-h10O'; allowed: did you mean 'dgx-h100'?"),
        ("[[island]]\nnode = 7\nnodes = 2", "lab.toml: island 1.node: 7 is not a name"),
        ("name = 'a\u202eb'\n" + ISLAND, r"lab.toml.name: 'a\u202eb' holds a line end or another character that"),
        ('name = "a\\nb"\n' + ISLAND, r"'a\nb' holds a line end or another character that cannot be printed"),
        ("[[island]]\nnode = 'dgx-h100'\nnodes = 2.5", "island 1.nodes: 2.5 is not a whole number"),
        ("[[island]]\nnode = 'dgx-h100'\nnodes = true", "True is not a whole number"),
        ("[[island]]\nnode = 'dgx-h100'\nnodes = 0", "island 1.nodes: 0 is out of range; allowed: 1 to 1000000"),
        ("[[island]]\nlike = 'dgx-h100'\nnodes = 2", "'node' names the type"),
        (ISLAND + "gpu = 6", "unknown key 'gpu'; allowed: did you mean 'gpus'?"),
        (ISLAND + "gpus = 0", "island 1.gpus: 0 is out of range; allowed: 1 to 1024"),
        (ISLAND + "gpus = 'eight'", "'eight' is not a whole number"),
        (ISLAND + "price_per_hour = -1", "-1 is out of range"),
        (ISLAND + "price_per_hour = nan", "NaN is out of range"),
        (ISLAND + "power_cap_w = inf", "Infinity is out of range"),
        (ISLAND + "power_cap_w = 1e999999999", "is out of range"),
        (ISLAND + "gpu_power_cap_w = 900", "gpu_power_cap_w 900 cannot be set on h100-sxm-80gb; allowed: 200 to 700 W"),
        (ISLAND + "gpu_power_cap_w = 50", "200 to 700 W"),
        (ISLAND + "accelerator = 'h1000'", "unknown accelerator 'h1000'; allowed: did you mean 'h100"),
        (ISLAND + "nics = 4", "island 1.nics: 4 is not a table"),
        (ISLAND + "[island.nics]\nspeed = 4", "lab.toml: island 1.nics: unknown key 'speed'"),
        (ISLAND + "[island.nics]\ngpudirect = 1", "1 is not true or false"),
        (ISLAND + "[island.nics]\ncount = 0", "2 nodes without network adapters"),
        (ISLAND + "[island.nics]\ngbit_per_s = 0", "2 nodes without network adapters"),
        (ISLAND + "[island.nics]\ngbit_per_s = 400\ngb_per_s = 50", "'gb_per_s' and 'gbit_per_s' state the same"),
        (ISLAND + "[island.nics]\nkind = 'carrier-pigeon'", "allowed: 'nvlink', 'xgmi'"),
        (ISLAND + "[island.scale_up]\nshape = 'ball'", "'switch', 'mesh'"),
        (ISLAND + "[island.scale_up]\ndomain_gpus = 12", "domain_gpus 12 with 8 accelerators"),
        (ISLAND + "[island.scale_up]\ndomain_gpus = 4", "nothing joins the domains"),
        (ISLAND + "[island.scale_up]\npair_gb_per_s = 500", "pair_gb_per_s is above gb_per_s; allowed: up to 450"),
        (ISLAND + "[island.scale_up]\nlinks = [[0, 1, 1]]", "links only with 'cube-mesh'"),
        (ISLAND + "[island.scale_up]\nlinks = [[0, 1]]", "lists of 3 whole numbers"),
        (ISLAND + "[island.scale_up]\nshape = 'cube-mesh'", "no links lead from GPU 0"),
        (ISLAND + "[island.scale_up]\nshape = 'cube-mesh'\nlinks = [[0, 9, 1]]", "link [0, 9, 1]"),
        (ISLAND + "[island.scale_up]\nshape = 'torus'\naxes = [3, 3]", "axes [3, 3] hold other than 8"),
        (ISLAND + "[island.cooling]\nrows = [[0, 1, 2, 3], [4, 5, 6]]", "GPUs [7] are in no row"),
        (ISLAND + "[island.cooling]\nrows = [[0, 1, 2, 3], [3, 4, 5, 6, 7]]", "a GPU is listed twice"),
        (ISLAND + "[island.cooling]\nrows = [[0, 1, 2, 3], [4, 5, 6, 8]]", "GPU 8 of 8; allowed: indices 0 to 7"),
        (ISLAND + "[island.cooling]\nrows = [[0.5]]", "is not a list of indices"),
        (ISLAND + "[island.cooling]\nrows = [[]]", "lists that are not empty"),
        (ISLAND + "[[island.fabric]]\nname = 'leaf'", "fabric 1: 'nodes' is missing"),
        (ISLAND + "[[island.fabric]]\nnodes = 0\n[[island.fabric]]\nnodes = 4", "nodes = 0 in the last tier only"),
        (ISLAND + "[[island.fabric]]\nnodes = 4\n[[island.fabric]]\nnodes = 4", "fabric sizes [4, 4] do not rise"),
        (ISLAND + "[[island.fabric]]\nnodes = 4\n[[island.fabric]]\nnodes = 6", "fabric sizes [4, 6] do not nest"),
        (ISLAND + "[[island.fabric]]\nnodes = 4\noversubscription = 0.5", "0.5 is out of range; allowed: 1 to 1000"),
        (ISLAND + ISLAND, "several islands, but nothing says how they are joined"),
        (ISLAND + "[[island.device]]\ngpu = 1", "island 1: device 1: 'node' is missing; allowed: node, and gpu"),
        (ISLAND + "[[island.device]]\nnode = 2\ngpu = 1", "node 2, gpu 1 is not in the island; allowed: node 0 to 1"),
        (ISLAND + "[[island.device]]\nnode = 1\ngpu = 1\nspeed = 0", "device 1.speed: 0 is out of range"),
        (ISLAND + "[[island.device]]\nnode = 1\ngpu = 1\nspeed = 1.2", "0.001 to 1"),
        (ISLAND + "[[island.device]]\nnode = 1\ngpu = 1\n" * 2, "device: node 1, gpu 1 is stated twice"),
        (ISLAND + "[[island.device]]\nnode = 1\n[[island.device]]\nnode = 1\ngpu = 1\n", "gpu 1 is stated twice"),
        ("pue = 0.9\n" + ISLAND, "lab.toml.pue: 0.9 is out of range; allowed: 1 to 10"),
        ("pue = '1.2'\n" + ISLAND, "'1.2' is not a number"),
        ("electricity = 0.2\n" + ISLAND, "did you mean 'electricity_per_kwh'?"),
        ("name = ''\n" + ISLAND, "lab.toml.name: '' is not a name"),
        ("sources = 'x'\n" + ISLAND, "is not a list of texts"),
        ("[[accelerator]]\nlike = 'h100'\n" + ISLAND, "accelerator 1: 'name' is missing"),
        ("[[accelerator]]\nname = 'x'\nmemory_gb = 1\nmemory_gb_per_s = 1\n" + ISLAND, "no peak rate is given"),
        ("[[accelerator]]\nname = 'x'\npeak_bf16_tflops = 1\nmemory_gb = 1\n" + ISLAND, "'memory_gb_per_s' is missing"),
        ("[[accelerator]]\nname = 'x'\npeak_bf61_tflops = 1\n" + ISLAND, "did you mean 'peak_bf16_tflops'?"),
        ("[[accelerator]]\nname = 'x'\nlike = 'h100'\n" * 2 + ISLAND, "'x' is defined twice"),
        ("[[accelerator]]\nname = 'x'\nlike = 'x'\n" + ISLAND, "unknown accelerator 'x'"),
        ("[[node_type]]\nname = 'x'\ngpus = 4\n" + ISLAND, "node_type 1: 'accelerator' is missing"),
        ("name = 'a\nb'", "not TOML"),
        ("x = " + "[" * 5000, "not TOML"),
        ("x = 1" + "0" * 5000, "not TOML"),
        ("nodes = 4", "unknown key 'nodes'"),
    ],
)
def test_refusals_name_place_value_and_what_is_allowed(text: str, said: str) -> None:
    message = refusal(text)
    assert message.startswith("lab.toml")
    assert said in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MOST_BYTES + 1))
    for path, said in ((binary, "not UTF-8"), (large, f"up to {MOST_BYTES} bytes"), (tmp_path, "cannot be read")):
        with pytest.raises(InputError) as caught:
            read_cluster_file(path)
        assert str(caught.value).startswith(str(path))
        assert said in str(caught.value)


def test_name_defaults_to_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "basement.toml"
    path.write_text(ISLAND, encoding="utf-8")
    assert catalog.cluster(str(path)).name == "basement"


def none_or(most: float) -> st.SearchStrategy[float]:
    """0, or a number that is not next to it in any unit."""
    return st.just(0.0) | st.floats(min(0.01, most), most)


positive = st.floats(1e6, 1e15, allow_subnormal=False)
small = none_or(0.5)
watts = none_or(5e4)
printed = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), min_size=1, max_size=8)


@st.composite
def accelerators(draw: st.DrawFn) -> Accelerator:
    memory = draw(st.floats(1e9, 1e12))
    lowest, highest = sorted((draw(watts), draw(watts)))
    return Accelerator(
        name=draw(printed),
        vendor=draw(printed),
        constants_of=draw(st.sampled_from(("", "h100-sxm-80gb"))),
        peak=PeakRates(bf16=draw(positive), fp8=draw(positive)),
        memory_bytes=memory,
        memory_bytes_per_s=draw(st.floats(1e9, 1e14)),
        allocatable_bytes=draw(none_or(memory)),
        multiprocessors=draw(st.integers(0, 1000)),
        base_clock_hz=draw(none_or(4e9)),
        tdp_w=draw(watts),
        min_power_limit_w=lowest,
        max_power_limit_w=highest,
        sources=tuple(draw(st.lists(printed, max_size=2))),
    )


@st.composite
def nodes(draw: st.DrawFn) -> NodeType:
    gpus = draw(st.integers(1, 16))
    pair, extra = draw(st.floats(1e9, 1e12)), draw(none_or(1e12))
    order = draw(st.permutations(range(gpus)))
    cut = draw(st.integers(1, gpus))
    rows = tuple(row for row in (tuple(order[:cut]), tuple(order[cut:])) if row)
    return NodeType(
        name=draw(printed),
        accelerator=draw(accelerators()),
        gpus=gpus,
        scale_up=ScaleUp(
            kind=draw(st.sampled_from(LinkKind)),
            shape=draw(st.sampled_from((FabricShape.SWITCH, FabricShape.MESH, FabricShape.TREE))),
            domain_gpus=gpus * draw(st.integers(1, 4)),
            bytes_per_s=pair + extra,
            pair_bytes_per_s=pair,
            latency_s=draw(small),
        ),
        nics=Nics(
            kind=draw(st.sampled_from(LinkKind)),
            count=draw(st.integers(1, 32)),
            bytes_per_s=draw(st.floats(1e6, 1e12)),
            latency_s=draw(small),
            gpudirect=draw(st.booleans()),
        ),
        host=Host(memory_bytes=draw(none_or(1e13)), numa=rows),
        cooling=Cooling(kind=draw(st.sampled_from(CoolingKind)), rows=rows, inlet_c=draw(st.floats(-40.0, 100.0))),
        power_cap_w=draw(watts),
        price_per_hour=draw(none_or(1e6)),
    )


@st.composite
def islands(draw: st.DrawFn) -> Island:
    leaf = draw(st.integers(1, 50))
    sizes = draw(st.sampled_from(((), (leaf,), (leaf, leaf * draw(st.integers(2, 20))))))
    tiers = tuple(
        FabricTier(name=draw(printed), nodes=size, oversubscription=draw(st.floats(1.0, 100.0)), latency_s=draw(small))
        for size in sizes
    )
    node, count = draw(nodes()), draw(st.integers(1, 1000))
    seats = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, node.gpus - 1)), max_size=3))
    unlike = tuple(
        DeviceState(node=seat[0], gpu=seat[1], clock_hz=draw(none_or(4e9)), speed=draw(st.floats(0.001, 1.0)))
        for seat in sorted(seats)
    )
    return Island(node=node, nodes=count, fabric=tiers, devices=unlike)


@settings(max_examples=60, deadline=None)
@given(
    machines=st.lists(islands(), min_size=1, max_size=2),
    rate=st.floats(1e3, 1e12),
    price=none_or(100.0),
    name=printed,
)
def test_any_cluster_survives_writing(machines: list[Island], rate: float, price: float, name: str) -> None:
    machine = Cluster(
        name=name, islands=tuple(machines), inter_island_bytes_per_s=rate, electricity_per_kwh=price, currency="€"
    )
    check_cluster(machine, "made up")
    assert parse_cluster(to_toml(machine), "written.toml", "other") == machine


def damaged(text: str) -> Iterator[str]:
    """A valid file with one line removed, doubled, or given another type."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        yield "\n".join(lines[:place] + lines[place + 1 :])
        yield "\n".join([*lines[: place + 1], line, *lines[place + 1 :]])
        if "=" in line:
            for value in ('"text"', "-1", "[1]", "{}", "true", "1979-05-27"):
                yield "\n".join([*lines[:place], f"{line.split('=')[0]}= {value}", *lines[place + 1 :]])


def test_damaged_files_never_end_in_another_error() -> None:
    machine = replace(catalog.cluster("dgx-1:2"), sources=())
    read, refused = 0, 0
    for text in damaged(to_toml(machine)):
        try:
            parsed(text)
            read += 1
        except InputError:
            refused += 1
    assert refused > read > 0
