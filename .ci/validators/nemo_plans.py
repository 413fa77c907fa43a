"""Random requests to NeMo 2: its own override parser, strategy and Megatron-core must agree with the rules.

Usage: nemo_plans.py [--requests N] [--seed S]

As bridge_plans.py. Models with latent attention, whose configuration NeMo has apart, are left out. The formats that are
in force after NeMo has laid them over optimizer and ``ddp`` must be the plan's; a misspelt key of the strategy must be
taken without a word, as ``plan check`` says, and one of another section refused.
"""

import os
import sys
from typing import Any

import real
from megatron_requests import Request, compared, differing_formats, drawn_requests, options_of, request_of

from costmodels.workload.model import Attention, LayerKind, ModelSpec, MoeFfn, StateSpace
from planner.export.megatron_hybrid import is_hybrid, layer_letters
from planner.request import Framework
from planner.rules import facts_of


def sizes_of(spec: ModelSpec, seq: int) -> dict[str, Any]:
    """Fields of NeMo's configuration that build a model."""
    facts = facts_of(spec)
    kinds = [kind for kind in spec.layer_kinds() if isinstance(kind, LayerKind)]
    heads = next(kind.mixer.qk_dim for kind in kinds if isinstance(kind.mixer, Attention))
    sizes = {
        "num_layers": facts.layers,
        "hidden_size": facts.hidden,
        "num_attention_heads": facts.heads,
        "num_query_groups": facts.kv_heads,
        "kv_channels": heads,
        "ffn_hidden_size": facts.ffn or facts.expert_ffn,
        "seq_length": seq,
        "add_bias_linear": facts.linear_bias,
        "share_embeddings_and_output_weights": not facts.untied,
    }
    if is_hybrid(spec):
        states = [kind.mixer for kind in kinds if isinstance(kind.mixer, StateSpace)]
        return {
            **sizes,
            "hybrid_override_pattern": layer_letters(spec),
            "mamba_num_heads": states[0].heads,
            "mamba_head_dim": states[0].head_dim,
            "mamba_state_dim": states[0].state,
            "mamba_num_groups": states[0].groups,
        }
    if not facts.experts:
        return sizes
    return {
        **sizes,
        "num_moe_experts": facts.experts,
        "moe_router_topk": facts.top_k,
        "moe_router_pre_softmax": facts.top_k == 1,
        "moe_ffn_hidden_size": facts.expert_ffn,
        "moe_shared_expert_intermediate_size": facts.shared_ffn or None,
        "moe_layer_freq": [int(isinstance(kind.ffn, MoeFfn)) for kind in kinds],
        "moe_grouped_gemm": True,
    }


def nemo_request(draw_seed: int, name: str, machine: str, legal: bool) -> Request | None:
    """A random request for NeMo; None for models that its plain configuration does not build."""
    found = request_of(draw_seed, name, machine, legal, framework=Framework.NEMO)
    if found is None or facts_of(found.spec).latent or found.spec.mtp_layers:
        return None
    return None if is_hybrid(found.spec) and facts_of(found.spec).experts else found  # core 0.15 has no letter for them


def main() -> int:
    """Ask the real package and print what differs."""
    options = options_of(__doc__, 50)
    os.environ["VALIDATOR_VENV"] = f"{real.validator_python().parents[1]}-nemo"  # an environment of its own
    requests = drawn_requests(options, nemo_request)
    cases = [
        {
            "name": request.spec.name,
            "world_size": request.layout.gpus,
            "sizes": sizes_of(request.spec, request.job.seq),
            "overrides": list(request.words),
        }
        for request in requests
    ]
    fine = next(case for case, request in zip(cases, requests, strict=True) if not request.rules)
    silent = {**fine, "overrides": [*fine["overrides"], "trainer.strategy.context_paralel_size=2"]}
    misspelt = {**fine, "overrides": [*fine["overrides"], "data.micro_batch_sise=2"]}
    answers = real.answers([*cases, silent, misspelt], harness="nemo_harness.py")
    if (answers[-2]["accepted"], answers[-1]["accepted"]) != (True, False):
        print(f"misspelt keys: {answers[-2:]}")
        return 1
    wrong = compared(requests, answers[: len(cases)], options.requests)
    return int(bool(wrong + differing_formats(requests, answers[: len(cases)])))


if __name__ == "__main__":
    sys.exit(main())
