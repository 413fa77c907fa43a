"""Random Megatron-LM argument lists: a grid that mostly fits, and flags that are each on with some chance."""

import random
from typing import Final

Words = tuple[str, ...]
Options = dict[str, Words]

ON: Final[Words] = ()
DEGREES: Final = (1, 1, 2, 2, 4, 8, 3)
# Chance that the flag is given, flag, the word lists to choose from.
CHANCES: Final[tuple[tuple[float, str, tuple[Words, ...]], ...]] = (
    (0.70, "--swiglu", (ON,)),
    (0.50, "--normalization", (("RMSNorm",), ("LayerNorm",))),
    (0.70, "--disable-bias-linear", (ON,)),
    (0.80, "--position-embedding-type", (("rope",), ("rope",), ("rope",), ("none",), ("learned_absolute",), ("yarn",))),
    (0.70, "--untie-embeddings-and-output-weights", (ON,)),
    (0.15, "--multi-latent-attention", (ON,)),
    (0.08, "--kv-channels", (("128",), ("64",))),
    (0.60, "--sequence-parallel", (ON,)),
    (0.05, "--ffn-hidden-size", (("11008",), ("5462",), ("8190",))),
    (0.08, "--no-overlap-p2p-communication", (ON,)),
    (0.08, "--microbatch-group-size-per-virtual-pipeline-stage", (("2",), ("4",), ("6",), ("8",), ("64",))),
    (0.05, "--moe-ffn-hidden-size", (("512",),)),
    (0.35, "--expert-model-parallel-size", (("1",), ("2",), ("4",), ("8",), ("3",))),
    (0.35, "--expert-tensor-parallel-size", (("1",), ("1",), ("2",), ("4",))),
    (0.70, "--use-distributed-optimizer", (ON,)),
    (0.15, "--overlap-param-gather", (ON,)),
    (0.25, "--overlap-grad-reduce", (ON,)),
    (0.08, "--num-distributed-optimizer-instances", (("2",), ("2",), ("3",))),
    (0.06, "--use-torch-fsdp2", (ON,)),
    (0.10, "--no-gradient-accumulation-fusion", (ON,)),
    (0.08, "--use-megatron-fsdp", (ON,)),
    (0.10, "--ckpt-format", (("torch",), ("torch_dcp",), ("fsdp_dtensor",), ("fsdp_dtensor",), ("torch_dist",))),
    (0.05, "--optimizer-cpu-offload", (ON,)),
    (0.05, "--use-precision-aware-optimizer", (ON,)),
    (0.03, "--fp8-param-gather", (ON,)),
    (0.08, "--fp8-format", (("hybrid",),)),
    (0.04, "--fp8-recipe", (("tensorwise",), ("delayed",))),
    (0.06, "--use-tp-pp-dp-mapping", (ON,)),
    (0.05, "--tp-comm-overlap", (ON,)),
    (0.05, "--cp-comm-type", (("a2a+p2p",), ("allgather",), ("p2p",))),
    (0.04, "--hierarchical-context-parallel-sizes", (("2", "2"), ("2", "1"), ("4",))),
    (0.04, "--tensor-parallel-num-weight-shards", (("2",), ("4",), ("8",), ("3",))),
    (0.04, "--cpu-offloading-num-layers", (("1",), ("1000",))),
)
EXPERT_CHANCES: Final[tuple[tuple[float, str, tuple[Words, ...]], ...]] = (
    (0.80, "--moe-grouped-gemm", (ON,)),
    (0.80, "--moe-token-dispatcher-type", (("alltoall",), ("alltoall",), ("allgather",))),
    (0.15, "--moe-router-score-function", (("sigmoid",),)),
    (0.10, "--moe-router-pre-softmax", (ON,)),
    (0.10, "--moe-router-enable-expert-bias", (ON,)),
    (0.10, "--moe-router-group-topk", (("2",),)),
    (0.10, "--moe-router-num-groups", (("4",), ("1",), ("3",))),
    (0.15, "--moe-shared-expert-intermediate-size", (("512",), ("510",))),
    (0.08, "--moe-shared-expert-overlap", (ON,)),
    (0.12, "--overlap-moe-expert-parallel-comm", (ON,)),
)
RECOMPUTE: Final[tuple[tuple[Options, int], ...]] = (
    ({}, 12),
    ({"--recompute-granularity": ("full",), "--recompute-method": ("uniform",), "--recompute-num-layers": ("1",)}, 3),
    ({"--recompute-granularity": ("full",), "--recompute-method": ("block",), "--recompute-num-layers": ("2",)}, 3),
    ({"--recompute-granularity": ("full",), "--recompute-num-layers": ("1",)}, 1),
    ({"--recompute-granularity": ("full",), "--recompute-method": ("block",)}, 1),
    ({"--recompute-granularity": ("selective",)}, 3),
    ({"--recompute-granularity": ("selective",), "--recompute-method": ("block",)}, 1),
    ({"--recompute-granularity": ("selective",), "--recompute-num-layers": ("2",)}, 1),
    ({"--recompute-granularity": ("selective",), "--recompute-modules": ("moe_act", "layernorm")}, 2),
    ({"--recompute-granularity": ("selective",), "--recompute-modules": ("mla_up_proj",)}, 2),
    ({"--recompute-granularity": ("selective",), "--recompute-modules": ("moe", "mlp")}, 2),
    ({"--recompute-granularity": ("selective",), "--recompute-modules": ("shared_experts",)}, 2),
    ({"--recompute-granularity": ("selective",), "--recompute-modules": ("attention",)}, 1),
)
PRECISIONS: Final[tuple[Options, ...]] = (
    *({"--bf16": ON},) * 9,
    {"--fp16": ON},
    {},
    {"--bf16": ON, "--fp16": ON},
)


def random_case(rng: random.Random, name: str) -> dict[str, object]:
    """One argument list around a random grid."""
    tp, pp, cp = rng.choice(DEGREES), rng.choice((1, 2, 4, 4, 8, 6)), rng.choice((1, 1, 1, 2, 4))
    dp = rng.choice((1, 2, 4, 8))
    world = max(1, tp * pp * cp * dp + rng.choice((0,) * 14 + (1, 8)))
    layers = rng.choice((pp * rng.randint(1, 6), pp * 4, 32, 30))
    heads = rng.choice((32, 32, 64, 24, 40))
    options: Options = {
        "--num-layers": (str(layers),),
        "--hidden-size": (str(heads * 64),),
        "--num-attention-heads": (str(heads),),
        "--max-position-embeddings": ("8192",),
        "--seq-length": (rng.choice(("4096", "4096", "2048", "8192", "4100", "16384")),),
        "--vocab-size": ("32000",),
        "--tensor-model-parallel-size": (str(tp),),
        "--pipeline-model-parallel-size": (str(pp),),
        "--context-parallel-size": (str(cp),),
        "--micro-batch-size": (rng.choice(("1", "1", "2")),),
        "--global-batch-size": (str(rng.choice((64, 128, 96, 72, 30)) * rng.choice((1, dp))),),
        "--lr": ("1e-4",),
        "--train-iters": ("10",),
        "--tokenizer-type": ("NullTokenizer",),
        "--mock-data": ON,
    }
    options |= rng.choice(PRECISIONS) | _drawn(rng, CHANCES) | _experts(rng, layers) | _split(rng, layers, pp)
    options |= rng.choices([flags for flags, _ in RECOMPUTE], [weight for _, weight in RECOMPUTE])[0]
    if rng.random() < 0.6:
        options |= {"--group-query-attention": ON, "--num-query-groups": (rng.choice(("8", "8", "4", "2", "1", "12")),)}
    args = [word for option, values in options.items() for word in (option, *values)]
    return {"name": name, "world_size": world, "args": args}


def _drawn(rng: random.Random, chances: tuple[tuple[float, str, tuple[Words, ...]], ...]) -> Options:
    return {flag: rng.choice(words) for chance, flag, words in chances if rng.random() < chance}


def _experts(rng: random.Random, layers: int) -> Options:
    if rng.random() > 0.45:
        return {}
    options: Options = {
        "--num-experts": (rng.choice(("8", "8", "16", "64", "6")),),
        "--moe-router-topk": (rng.choice(("1", "2", "2", "2", "4")),),
    }
    if rng.random() < 0.15:
        options["--moe-layer-freq"] = (rng.choice(("2", f"([0]*1+[1]*{layers - 1})", f"[1]*{layers}")),)
    return options | _drawn(rng, EXPERT_CHANCES)


def _split(rng: random.Random, layers: int, pp: int) -> Options:
    """One way of splitting layers, rarely two, and multi-token-prediction layers."""
    mtp = rng.choice((0,) * 6 + (1, 1, 2))
    first, last = (str(rng.randint(1, 8)),), (str(rng.randint(1, 8)),)
    layout = _layout(rng, layers, pp * rng.choice((1, 1, 2, 3)), mtp)
    virtual: Options = {"--num-virtual-stages-per-pipeline-rank": (rng.choice(("1", "2", "2", "3", "4")),)}
    ways: tuple[Options, ...] = (
        {},
        {},
        virtual,
        virtual,
        {"--num-layers-per-virtual-pipeline-stage": (rng.choice(("1", "2", "2", "3")),)},
        {"--decoder-first-pipeline-num-layers": first},
        {"--decoder-first-pipeline-num-layers": first, "--decoder-last-pipeline-num-layers": last},
        {"--decoder-last-pipeline-num-layers": last, **virtual},
        {"--account-for-embedding-in-pipeline-split": ON},
        {"--account-for-embedding-in-pipeline-split": ON, "--account-for-loss-in-pipeline-split": ON, **virtual},
        {"--account-for-loss-in-pipeline-split": ON, "--decoder-first-pipeline-num-layers": first},
        {"--pipeline-model-parallel-layout": (layout,)},
        {"--pipeline-model-parallel-layout": (layout,)},
        {"--pipeline-model-parallel-layout": (layout,), **virtual},
        {"--pipeline-model-parallel-layout": (layout,), "--decoder-last-pipeline-num-layers": last},
    )
    return rng.choice(ways) | ({"--mtp-num-layers": (str(mtp),)} if mtp else {})


def _layout(rng: random.Random, layers: int, positions: int, mtp: int) -> str:
    """A layout string that is right in most cases."""
    counts = [0] * positions
    for _ in range(layers + rng.choice((0,) * 9 + (1,))):
        counts[rng.randrange(positions)] += 1
    entries = ["t" * count if rng.random() < 0.5 or not count else f"t*{count}" for count in counts]
    entries[0] = rng.choice(("E",) * 12 + ("",)) + entries[0]
    holder = rng.choice((positions - 1,) * 3 + (rng.randrange(positions),))
    entries[holder] += "m" * (mtp + rng.choice((0,) * 9 + (1,)))
    entries[-1] += rng.choice(("L",) * 12 + ("", "LL"))
    text = "|".join(entries)
    if rng.random() < 0.1:
        text = text.replace("|", ",|", 1)
    return text + rng.choice(("",) * 20 + ("|", "x", "*2", "(t)*2"))
