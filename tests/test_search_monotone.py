"""What must hold of two searches: more of anything is never slower, and no name or order of islands matters."""

import random
from dataclasses import replace

import pytest
from small_requests import fits, small

from hardware.catalog import cluster
from hardware.cluster import Cluster
from planner import plan
from planner.request import PlanRequest

pytestmark = pytest.mark.deep
EXACT = 1.0 + 1e-9
CUTS = {"llama32_1b": (4,), "llama3_8b": (5,), "deepseek_v2_lite": (1, 2), "nemotron_h_8b": (1, 1, 1)}


def words_of(seed: int) -> dict[str, object]:
    """A request for a cut model on two to six GPUs, short of memory or not."""
    rng = random.Random(seed)
    model = rng.choice(tuple(CUTS))
    return {
        "model": model,
        "layers": CUTS[model],
        "cluster": rng.choice(("dgx-a100:1", "dgx-h100:1", "rtx-4090-8:1")),
        "gpus": rng.choice((2, 3)),
        "nodes": rng.choice((1, 2)),
        "memory_gib": rng.choice((10.0, 14.0, 24.0, 80.0)),
        "global_batch": rng.choice((4, 6, 12)),
        "seq": rng.choice((2048, 8192)),
        "recompute": rng.choice(("none", "full")),
        "framework": rng.choice(("megatron", "torchtitan", "deepspeed")),
        "top": 1,
    }


def best_s(request: PlanRequest) -> float:
    """Step time of the best layout that fits safely; infinite where there is none."""
    layouts = plan(request).layouts
    return layouts[0].cost.step.total_s if layouts and fits(layouts[0].cost) else float("inf")


def request_for(words: dict[str, object], **others: object) -> PlanRequest:
    return small(**{**words, **others})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 2])
def test_more_nodes_and_more_memory_are_never_slower(seed: int) -> None:
    words = words_of(seed)
    given_s = best_s(request_for(words))
    assert best_s(request_for(words, nodes=int(str(words["nodes"])) + 1)) <= given_s * EXACT
    assert best_s(request_for(words, memory_gib=1.1 * float(str(words["memory_gib"])))) <= given_s * EXACT


@pytest.mark.parametrize("seed", [5, 6])
def test_a_higher_power_cap_and_fewer_pins_are_never_slower(seed: int) -> None:
    words = words_of(seed)
    free_s = best_s(request_for(words))
    tdp_w = request_for(words).cluster.islands[0].node.accelerator.tdp_w
    low_s, high_s = (best_s(request_for(words, power_cap_w=round(share * tdp_w))) for share in (0.6, 0.8))
    assert free_s <= high_s * EXACT
    assert high_s <= low_s * EXACT
    for pin in ("pp=2", "micro_batch=1"):
        assert free_s <= best_s(request_for(words, fixed=(pin,))) * EXACT


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_islands_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    request = request_for(words_of(seed), framework="megatron")
    islands = tuple(
        replace(cluster(f"{name}:1").islands[0], node=replace(cluster(f"{name}:1").islands[0].node, gpus=count))
        for name, count in (("dgx-a100", rng.choice((1, 2))), ("dgx-h100", 2), ("dgx-a100-40", 1))
    )
    found_s = {best_s(replace(request, cluster=_of(order))) for order in (islands, islands[::-1])}
    assert max(found_s) <= min(found_s) * EXACT


def _of(islands: tuple) -> Cluster:  # type: ignore[type-arg]
    return Cluster(
        name="mixed",
        islands=islands,
        inter_island_bytes_per_s=25e9,
        inter_island_latency_s=5e-6,
        storage_bytes_per_s=0.0,
    )
