"""DeepSeek-V4: compressed keys, residual streams, what both cost, keep and send; how its configurations are read."""

from dataclasses import replace

import numpy as np
import pytest
from one_op import op_times

from costmodels.compute import default_efficiency
from costmodels.exchange.boundary import boundary_bytes
from costmodels.exchange.volumes import context_widths
from costmodels.job import TrainingJob
from costmodels.layout import Strategy
from costmodels.precision import precision
from costmodels.software import software
from costmodels.table import table_of
from costmodels.workload.counts import forward_flops, parameter_count
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import LayerKind, ModelSpec
from costmodels.workload.op import Op, OpKind, kept
from costmodels.workload.presets import model
from hardware.catalog import accelerator
from hardware.errors import InputError
from planner.export.deepspeed_model import left_open
from planner.export.megatron_model import model_arguments

PRO = model("deepseek_v4_pro")
ALONE = table_of([Strategy()], pp=[1], micro_batch=[1])
JOB = TrainingJob(
    global_batch=1, seq=4096, precision=precision("bf16", framework="megatron"), software=software("megatron-bridge-26")
)


def kind_of(spec: ModelSpec, beginning: str) -> LayerKind:
    return next(kind for kind in spec.kinds() if isinstance(kind, LayerKind) and kind.name.startswith(beginning))


def ops_of(spec: ModelSpec, beginning: str, **options: bool) -> dict[str, Op]:
    return {op.name: op for op in layer_ops(kind_of(spec, beginning), spec, **options)}


def seconds(op: Op, name: str, job: TrainingJob = JOB) -> tuple[float, float]:
    times = op_times(op, job, ALONE, accelerator(name), efficiency=default_efficiency())
    return float(times.forward_s[0]), float(times.backward_s[0])


# NVIDIA/cudnn-frontend pull request 318: backward kernel of attention to listed keys on B200, 4096 queries, one key
# head of width 512: heads, keys of a query, milliseconds
LISTED = [
    (64, 128, 0.560),
    (64, 512, 1.233),
    (64, 1024, 2.155),
    (64, 2048, 4.019),
    (128, 128, 1.066),
    (128, 512, 2.424),
    (128, 1024, 4.303),
]


@pytest.mark.parametrize(("heads", "keys", "measured_ms"), LISTED)
def test_backward_of_listed_keys_takes_what_was_measured(heads: int, keys: int, measured_ms: float) -> None:
    op = replace(ops_of(PRO, "compressed")["core_attention"], heads=heads, window=64, compress=1, chosen=keys - 64)
    assert seconds(op, "b200")[1] == pytest.approx(measured_ms / 1e3, rel=0.12)


def test_a_list_is_as_long_for_the_first_query_as_for_the_last() -> None:
    op = ops_of(PRO, "compressed")["core_attention"]
    # 128 near keys without the first queries' missing ones; the chosen of 1024 compressed ones, half of which lie ahead
    met = 128 - 128**2 / (2 * 4096) + 1024 - 1024**2 / (2 * 1024)
    assert forward_flops(op, 4096) == pytest.approx(2 * 128 * (512 + 512) * met)
    everywhere = replace(op, causal=False)
    assert forward_flops(everywhere, 4096) == pytest.approx(2 * 128 * (512 + 512) * (128 + 1024))
    assert seconds(everywhere, "b200") == seconds(op, "b200")


def test_heavily_compressed_keys_are_all_attended_to() -> None:
    op = ops_of(PRO, "heavily")["core_attention"]
    assert forward_flops(op, 4096) == pytest.approx(2 * 128 * 1024 * (126 + 16))
    assert "index_scores" not in ops_of(PRO, "heavily")


def test_the_indexer_scores_compressed_keys() -> None:
    scores = ops_of(PRO, "compressed")["index_scores"]
    assert forward_flops(scores, 4096) == pytest.approx(2 * 64 * 128 * 4096 / 4 / 2)


def test_streams_take_what_was_measured() -> None:
    """NVIDIA/Megatron-LM pull request 3828: four kernels on GB200, 32768 tokens, four streams of width 7168.

    Sums of gradients between the kernels are not in the measured times.
    """
    ops = [op for op in ops_of(PRO, "compressed").values() if "mixer_streams" in op.name]
    priced = [seconds(op, "gb200", replace(JOB, seq=32768)) for op in ops]
    forward_ms, backward_ms = 1e3 * np.sum(priced, axis=0)
    assert forward_ms == pytest.approx(0.065 + 0.349 + 0.684 + 0.426, rel=0.15)
    assert backward_ms == pytest.approx(0.133 + 0.661 + 2.549 + 1.541, rel=0.15)


def test_separate_kernels_move_the_streams_more_often() -> None:
    fused, separate = (ops_of(PRO, "compressed", fused_kernels=f)["ffn_streams_write"] for f in (True, False))
    ratio = separate.traffic_elements_per_token / fused.traffic_elements_per_token
    assert ratio == pytest.approx((6 * 4 + 1) / (2 * 4 + 1))


def test_recompute_of_the_streams_leaves_the_outputs_of_the_parts() -> None:
    names = ("mixer", "ffn")
    ops = layer_ops(kind_of(PRO, "compressed"), PRO)
    streams = [op for op in ops if op.name.startswith(tuple(f"{name}_{word}" for name in names for word in ("s", "n")))]
    whole, again = (sum(kept(op, modules).elements_per_token for op in streams) for modules in ((), ("mhc",)))
    # for either part: four streams, the input made of them, the output; then the output alone
    assert whole == 2 * (4 + 1 + 1) * 7168
    assert again == 2 * 7168


def test_what_passes_between_stages_is_all_streams() -> None:
    one = replace(PRO, streams=1)
    ratio = boundary_bytes(PRO, JOB, ALONE) / boundary_bytes(one, JOB, ALONE)
    assert ratio == pytest.approx(4.0)


def test_recipes_leave_compressors_and_grouped_products_in_16_bits() -> None:
    wide = {name for name, op in ops_of(PRO, "compressed").items() if op.kind is OpKind.GEMM and not op.low_precision}
    assert {"compressor", "index_compressor", "proj_down"} <= wide
    assert not {"q_down", "q_up", "kv", "proj"} & wide


def test_exports_name_streams_and_compressed_keys() -> None:
    with pytest.raises(InputError, match=r"several residual streams \(hyper-connections\)"):
        model_arguments(PRO, 4096)
    with pytest.raises(InputError, match="compressed keys beside a window"):
        model_arguments(replace(PRO, streams=1), 4096)
    assert {"several residual streams (hyper-connections)", "compressed keys beside a window of attention"} <= set(
        left_open(PRO)
    )


FLASH = {"model_type": "deepseek_v4"}
RATIOS = [0, 0, *[4, 128] * 20, 4, 0]  # the last one is of the prediction layer


def build(**fields: object) -> ModelSpec:
    return replace(from_config({**FLASH, **fields}, name="x", where="config.json"), notes=())


def test_configurations_of_both_forms_are_the_preset() -> None:
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    older, newer = build(compress_ratios=RATIOS), build(layer_types=[names[ratio] for ratio in RATIOS[:-1]])
    assert older.runs == newer.runs == model("deepseek_v4_flash").runs
    assert older.mtp_kind == model("deepseek_v4_flash").mtp_kind
    assert parameter_count(older) == parameter_count(model("deepseek_v4_flash"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compress_ratios": [3] * 44}, "compress_ratios: 3 is not accepted; allowed: 0, 4, 128"),
        ({"layer_types": ["full_attention"] * 43}, "layer_types"),
        ({"o_groups": 7}, "o_groups: 7 is not accepted; allowed: a divisor of the heads' width 32768"),
        ({"compress_rates": [4, 128]}, "compress_rates"),
        ({"hc_mult": 0}, "hc_mult"),
        ({"compress_rates": {"compressed_sparse_attention": 0}}, "compressed_sparse_attention"),
        ({"compress_ratios": [4, 128]}, "layer_types|compress_ratios"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**fields)


@pytest.mark.parametrize(("name", "indexed"), [("glm52", 21), ("glm5", 78), ("deepseek_v32", 61)])
def test_chosen_keys_are_read_from_latents(name: str, indexed: int) -> None:
    """Queries are as wide as latents, of which there is one for all heads; model FLOPs are those of heads."""
    spec = model(name)
    chosen = [kind for kind in spec.kinds() if isinstance(kind, LayerKind)]
    cores = [next(op for op in layer_ops(kind, spec) if op.name == "core_attention") for kind in chosen]
    assert {op.run_as for op in cores} == {(1, 576, 512)}
    assert {op.saved_elements_per_token for op in cores} == {512.0 * cores[0].heads}
    assert {op.qk_dim + op.v_dim for op in cores} == {512 if name.startswith("glm") else 320}
    indexers = [run.count for run in spec.runs if _has_indexer(run.kind, spec)]
    assert sum(indexers) == indexed


def _has_indexer(kind: object, spec: ModelSpec) -> bool:
    return isinstance(kind, LayerKind) and any(op.name == "index_scores" for op in layer_ops(kind, spec))


def test_context_parallelism_gathers_latents_of_chosen_keys() -> None:
    kind = next(kind for kind in model("glm5").kinds() if isinstance(kind, LayerKind))
    assert context_widths((kind.mixer,)).keys_values == 512 + 64
