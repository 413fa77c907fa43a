"""Flags beyond grid and split that a launch of Megatron-LM may carry, each on with some chance, legal or not.

A list draws a few themes, so that flags which are checked against each other meet often.
"""

import random
from collections.abc import Collection
from typing import Final

Words = tuple[str, ...]
Options = dict[str, Words]
Chances = tuple[tuple[float, str, tuple[Words, ...]], ...]

ON: Final[Words] = ()
MOST_THEMES: Final = 3
WITHOUT_BATCH: Final = 0.8

_FP8: Final[Chances] = (
    (0.85, "--fp8-format", (("hybrid",), ("e4m3",))),
    (0.70, "--fp8-recipe", (("tensorwise",), ("delayed",), ("mxfp8",), ("blockwise",), ("custom",))),
    (0.30, "--fp8-param-gather", (ON,)),
    (0.20, "--first-last-layers-bf16", (ON,)),
    (0.10, "--num-layers-at-start-in-bf16", (("0",), ("2",), ("40",))),
    (0.10, "--num-layers-at-end-in-bf16", (("1",), ("3",), ("-1",))),
    (0.10, "--fp8-output-proj", (ON,)),
    (0.15, "--fp4-format", (("e2m1",),)),
    (0.15, "--fp4-param-gather", (ON,)),
    (0.10, "--moe-router-padding-for-fp8", (ON,)),
    (0.10, "--moe-router-padding-for-quantization", (ON,)),
    (0.10, "--reuse-grad-buf-for-mxfp8-param-ag", (ON,)),
    (0.05, "--activation-func-fp8-input-store", (ON,)),
)
_GRAPHS: Final[Chances] = (
    (0.70, "--cuda-graph-impl", (("local",), ("transformer_engine",), ("full_iteration",), ("none",))),
    (
        0.50,
        "--cuda-graph-modules",
        (
            ("attn",),
            ("mlp",),
            ("moe",),
            ("moe_router",),
            ("moe_preprocess",),
            ("attn", "moe_router", "moe_preprocess"),
            ("full",),
            ("full_iteration",),
        ),
    ),
    (0.10, "--enable-cuda-graph", (ON,)),
    (0.10, "--external-cuda-graph", (ON,)),
    (0.10, "--cuda-graph-scope", (("attn",), ("full_iteration",))),
    (0.40, "--no-check-for-nan-in-loss-and-grad", (ON,)),
    (0.10, "--inference-cuda-graph-scope", (("layer",), ("block",), ("none",))),
    (0.20, "--attention-dropout", (("0",),)),
    (0.20, "--hidden-dropout", (("0",),)),
    (0.10, "--moe-expert-capacity-factor", (("1.0",),)),
    (0.10, "--moe-pad-expert-input-to-capacity", (ON,)),
)
_DISPATCH: Final[Chances] = (
    (0.70, "--moe-token-dispatcher-type", (("flex",), ("alltoall",), ("allgather",))),
    (0.40, "--moe-flex-dispatcher-backend", (("deepep",), ("hybridep",), ("ncclep",))),
    (0.25, "--moe-enable-deepep", (ON,)),
    (0.25, "--moe-expert-capacity-factor", (("1.25",), ("-1",))),
    (0.25, "--moe-pad-expert-input-to-capacity", (ON,)),
    (
        0.25,
        "--moe-router-load-balancing-type",
        (("sinkhorn",), ("aux_loss",), ("none",), ("seq_aux_loss",), ("aux_loss", "seq_aux_loss")),
    ),
    (0.20, "--moe-aux-loss-coeff", (("1e-2",), ("1e-2", "1e-3"))),
    (0.15, "--moe-permute-fusion", (ON,)),
    (0.15, "--moe-router-dtype", (("fp32",),)),
    (0.10, "--moe-deepep-num-sms", (("20",),)),
    (0.10, "--moe-hybridep-num-sms", (("16",),)),
    (0.10, "--moe-expert-rank-capacity-factor", (("1.5",),)),
    (0.10, "--use-transformer-engine-op-fuser", (ON,)),
    (0.10, "--moe-single-grouped-weight", (ON,)),
    (0.10, "--moe-latent-size", (("256",), ("0",))),
    (0.10, "--moe-router-topk-limited-devices", (("2",),)),
    (0.10, "--delay-wgrad-compute", (ON,)),
    (0.10, "--moe-layer-recompute", (ON,)),
    (0.10, "--moe-paged-stash", (ON,)),
    (0.06, "--moe-use-upcycling", (ON,)),
    (0.10, "--moe-shared-expert-gate", (ON,)),
    (0.05, "--overlap-dispatch-backward-with-experts-wgrad", (ON,)),
    (0.05, "--ep-overlap-early-attn-memory-release", (ON,)),
)
_OPTIMIZER: Final[Chances] = (
    (0.40, "--optimizer", (("adam",), ("sgd",), ("muon",), ("dist_muon",), ("lion",))),
    (0.40, "--use-precision-aware-optimizer", (ON,)),
    (0.25, "--exp-avg-dtype", (("bf16",), ("fp8",), ("fp16",))),
    (0.25, "--exp-avg-sq-dtype", (("bf16",), ("fp16",))),
    (0.20, "--main-grads-dtype", (("bf16",), ("fp32",))),
    (0.15, "--main-params-dtype", (("fp16",), ("fp32",))),
    (0.25, "--optimizer-cpu-offload", (ON,)),
    (0.10, "--optimizer-offload-fraction", (("0.5",),)),
    (0.20, "--overlap-param-gather-with-optimizer-step", (ON,)),
    (0.15, "--accumulate-allreduce-grads-in-fp32", (ON,)),
    (0.15, "--grad-reduce-in-bf16", (ON,)),
    (0.10, "--fp16-lm-cross-entropy", (ON,)),
    (0.10, "--fp32-residual-connection", (ON,)),
    (0.15, "--no-use-gloo-process-groups", (ON,)),
    (0.10, "--disable-gloo-process-groups", (ON,)),
    (0.10, "--weight-decay-incr-style", (("constant",), ("linear",))),
    (0.10, "--defer-embedding-wgrad-compute", (ON,)),
    (0.10, "--wgrad-deferral-limit", (("2",), ("-1",))),
    (0.10, "--freeze-all-layers", (ON,)),
)
_BATCH: Final[Chances] = (
    (0.50, "--rampup-batch-size", (("32", "32", "100000"), ("16", "8", "1000"), ("5", "3", "100"), ("64", "64", "64"))),
    (0.30, "--step-batch-size-schedule", (("0:64 1M:128",), ("0:32 1B:96",), ("5M:32",), ("0:16 1K:32",), ("0-32",))),
    (0.20, "--train-samples", (("1000000",),)),
    (0.10, "--decrease-batch-size-if-needed", (ON,)),
    (0.10, "--eval-micro-batch-size", (("1",), ("3",))),
    (0.10, "--eval-global-batch-size", (("64",), ("30",))),
    (0.10, "--lr-warmup-fraction", (("0.01",),)),
    (0.10, "--lr-warmup-iters", (("5",),)),
    (0.10, "--lr-decay-samples", (("100",),)),
    (0.10, "--min-lr", (("1e-5",), ("1e-3",))),
    (0.10, "--save-interval", (("100",), ("0",))),
    (0.10, "--save", (("ckpt",),)),
    (0.10, "--save-retain-interval", (("200",), ("150",), ("0",))),
    (0.10, "--log-memory-interval", (("200",), ("30",))),
    (0.05, "--start-weight-decay", (("0.1",),)),
    (0.05, "--end-weight-decay", (("0.2",),)),
    (0.05, "--num-dataset-builder-threads", (("2",), ("0",))),
    (0.05, "--inference-batch-times-seqlen-threshold", (("10",), ("-1",))),
)
_RECOMPUTE: Final[Chances] = (
    (0.30, "--recompute-activations", (ON,)),
    (0.25, "--distribute-saved-activations", (ON,)),
    (0.10, "--checkpoint-activations", (ON,)),
    (0.30, "--fine-grained-activation-offloading", (ON,)),
    (
        0.30,
        "--offload-modules",
        (
            ("core_attn",),
            ("attn_proj",),
            ("moe_act",),
            ("expert_fc1", "moe_act"),
            ("qkv_linear", "core_attn", "attn_proj"),
            ("fused_group_mlp",),
            ("fused_group_mlp", "expert_fc1"),
            ("mlp",),
        ),
    ),
    (0.10, "--use-transformer-engine-op-fuser", (ON,)),
    (0.05, "--min-offloaded-tensor-size", (("-1",), ("0",))),
    (0.05, "--delta-offload-bytes-across-pp-ranks", (("-1",),)),
    (0.20, "--cpu-offloading-num-layers", (("1",), ("2",))),
    (0.10, "--activation-offload-fraction", (("0.5",), ("1.5",), ("-0.5",))),
    (0.10, "--recompute-method", (("uniform",), ("block",))),
)
_MODEL: Final[Chances] = (
    (0.20, "--squared-relu", (ON,)),
    (0.15, "--quick-geglu", (ON,)),
    (0.10, "--glu-linear-offset", (("1.0",),)),
    (0.20, "--no-bias-swiglu-fusion", (ON,)),
    (0.15, "--no-bias-gelu-fusion", (ON,)),
    (0.15, "--qk-layernorm", (ON,)),
    (0.15, "--add-qkv-bias", (ON,)),
    (0.10, "--no-position-embedding", (ON,)),
    (0.10, "--use-rotary-position-embeddings", (ON,)),
    (0.15, "--rotary-interleaved", (ON,)),
    (0.10, "--no-rope-fusion", (ON,)),
    (0.15, "--rope-type", (("rope",), ("yarn",))),
    (0.10, "--attention-output-gate", (ON,)),
    (0.10, "--no-rope-freq", (("4",), ("5",), ("[0,0,1]",))),
    (0.15, "--window-size", (("127,0",),)),
    (0.10, "--window-attn-skip-freq", (("2",), ("x",))),
    (0.05, "--flash-decode", (ON,)),
    (0.05, "--cache-mla-latents", (ON,)),
    (0.05, "--moe-router-topk", (("1",),)),
    (0.05, "--moe-router-enable-expert-bias", (ON,)),
    (0.05, "--inference-fuse-tp-communication", (ON,)),
    (0.10, "--qk-clip", (ON,)),
    (0.05, "--qk-clip-alpha", (("1.5",),)),
    (0.10, "--transformer-impl", (("local",), ("transformer_engine",))),
    (0.08, "--attention-backend", (("flash",), ("local",), ("auto",))),
    (0.08, "--mla-down-proj-fusion", (ON,)),
    (0.10, "--experimental-attention-variant", (("gated_delta_net",), ("dsa",))),
    (0.10, "--linear-attention-freq", (("4",),)),
    (0.10, "--linear-num-key-heads", (("16",),)),
    (0.10, "--linear-num-value-heads", (("32",), ("24",))),
    (0.10, "--cross-entropy-loss-fusion", (ON,)),
    (0.10, "--cross-entropy-fusion-impl", (("te",), ("native",))),
    (0.08, "--use-te-activation-func", (ON,)),
    (0.08, "--fused-residual-rmsnorm", (ON,)),
    (0.05, "--deterministic-mode", (ON,)),
    (0.08, "--apply-query-key-layer-scaling", (ON,)),
    (0.05, "--use-mup", (ON,)),
    (0.05, "--mrope-section", (("16", "24", "24"),)),
)
_SHARDING: Final[Chances] = (
    (0.50, "--use-megatron-fsdp", (ON,)),
    (0.40, "--data-parallel-sharding-strategy", (("no_shard",), ("optim",), ("optim_grads",), ("optim_grads_params",))),
    (0.50, "--ckpt-format", (("fsdp_dtensor",), ("torch",), ("torch_dist",))),
    (0.15, "--nccl-ub", (ON,)),
    (0.10, "--fsdp-manual-registration", (ON,)),
    (0.10, "--fsdp-double-buffer", (ON,)),
    (0.15, "--init-model-with-meta-device", (ON,)),
    (0.15, "--check-weight-hash-across-dp-replicas-interval", (("10",),)),
    (0.10, "--num-distributed-optimizer-instances", (("2",),)),
    (0.10, "--outer-dp-sharding-strategy", (("optim",), ("no_shard",))),
    (0.10, "--ddp-average-in-collective", (ON,)),
    (0.10, "--calculate-per-token-loss", (ON,)),
    (0.10, "--use-torch-fsdp2", (ON,)),
    (0.10, "--no-gradient-accumulation-fusion", (ON,)),
    (0.10, "--align-param-gather", (ON,)),
)
_CONTEXT: Final[Chances] = (
    (0.40, "--hybrid-context-parallel", (ON,)),
    (0.30, "--calculate-per-token-loss", (ON,)),
    (0.30, "--cp-comm-type", (("p2p", "a2a"), ("a2a+p2p",), ("allgather",), ("all_gather",), ("a2a",))),
    (0.20, "--hierarchical-context-parallel-sizes", (("2", "2"), ("1", "2"), ("2", "1"), ("4", "1"))),
    (0.20, "--dataloader-type", (("single",), ("cyclic",))),
    (0.15, "--overlap-p2p-communication-warmup-flush", (ON,)),
    (0.20, "--tp-comm-overlap", (ON,)),
    (0.10, "--batch-invariant-mode", (ON,)),
    (0.10, "--flash-attention-version", (("3",), ("5",))),
    (0.10, "--symmetric-ar-type", (("two_shot",),)),
    (0.10, "--no-create-attention-mask-in-dataloader", (ON,)),
    (0.10, "--tp-comm-bootstrap-backend", (("nccl",), ("mpi",))),
)
THEMES: Final = (_FP8, _GRAPHS, _DISPATCH, _OPTIMIZER, _BATCH, _RECOMPUTE, _MODEL, _SHARDING, _CONTEXT)


def wide_options(rng: random.Random) -> Options:
    """Flags of a few themes."""
    options: Options = {}
    for theme in rng.sample(THEMES, rng.choice((0, 1, 1, 2, MOST_THEMES))):
        options |= {flag: rng.choice(words) for chance, flag, words in theme if rng.random() < chance}
    return options


def widened(rng: random.Random, args: list[str], known: Collection[str]) -> list[str]:
    """Add flags of a few themes that the parser knows; a schedule of batches mostly replaces the batch."""
    options: dict[str, list[str]] = {}
    name = ""
    for word in args:
        if word.startswith("--"):
            name = word
            options[name] = []
        else:
            options[name].append(word)
    options |= {flag: list(words) for flag, words in wide_options(rng).items() if flag in known}
    if "--step-batch-size-schedule" in options and rng.random() < WITHOUT_BATCH:
        options.pop("--global-batch-size", None)
    return [word for flag, words in options.items() for word in (flag, *words)]
