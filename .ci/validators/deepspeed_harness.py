"""Runs DeepSpeed's own checks on a machine without GPUs.

Standard input holds one JSON object a line, ``{"name", "config", "tp", "pp", "dp", "data", "layers", "method",
"tied"}``; standard output answers with one line each, ``{"name", "accepted", "step", "error", "stage", "batch",
"offload", "precision", "unread", "layers", "groups"}``.

What is real: ``DeepSpeedConfig`` with every check of its sections and of the batch, the process topology with its
groups, and ``PipelineModule._partition_layers``. What stands in: the data-parallel size comes from a small ``mpu``, and
the layers of the pipeline are empty classes with the names that Megatron-DeepSpeed's have. ``unread`` names the
top-level keys that DeepSpeed never looks at.
"""

# ruff: noqa: PLC0415  -- DeepSpeed is imported after its accelerator is chosen

import logging
import os
import sys
import types
import warnings
from typing import Any

import forks


class _Watched(dict[str, Any]):
    """A configuration that remembers which keys were looked at; copies share the memory."""

    seen: set[str] = set()  # noqa: RUF012 - one case in a process

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)


def partition(case: dict[str, Any]) -> list[int]:
    """Transformer layers of every stage as the real ``PipelineModule`` cuts its list of layers."""
    from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    names = ["EmbeddingPipe", *["ParallelTransformerLayerPipe"] * case["layers"], "LayerNormPipe"]
    names.append("EmbeddingPipe" if case["tied"] else "LMHeadPipe")
    import torch

    specs = [LayerSpec(type(name, (torch.nn.Module,), {})) for name in names]
    found = []
    for stage in range(case["pp"]):
        module = object.__new__(PipelineModule)
        topology = PipeModelDataParallelTopology(num_pp=case["pp"], num_mp=case["tp"], num_dp=case["data"])
        rank = topology.get_rank(pipe=stage, data=0, model=0)
        vars(module).update(_layer_specs=specs, _topo=topology, num_stages=case["pp"], global_rank=rank, loss_fn=None)
        module._partition_layers(method=case["method"])
        held = names[module._local_start : module._local_stop]
        found.append(held.count("ParallelTransformerLayerPipe"))
    return found


def groups(case: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Ranks of every group by axis, from the real topology."""
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(num_pp=case["pp"], num_mp=case["tp"], num_dp=case["data"])
    names = {"pipe": "pp", "data": "dp", "model": "tp"}
    return {name: sorted(topology.get_axis_comm_lists(axis)) for axis, name in names.items()}


def offloaded(section: Any) -> bool:
    """Whether a section of an offload names the host."""
    return bool(section) and getattr(section.device, "value", section.device) != "none"


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    comm.get_rank = lambda *_: 0
    mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: case["dp"])
    given = _Watched(case["config"])
    try:
        config = DeepSpeedConfig(given, mpu=mpu)
    except Exception as error:
        raise forks.RefusedError("config", f"{type(error).__name__}: {error}") from None
    batch = [config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps]
    return {
        "stage": int(config.zero_optimization_stage),
        "batch": batch,
        "offload": offloaded(config.zero_config.offload_optimizer),
        "precision": [bool(config.bfloat16_config.enabled), bool(config.float16_config.enabled)],
        "unread": sorted(set(given) - _Watched.seen),
        "layers": partition(case) if case["pp"] > 1 else [case["layers"]],
        "groups": groups(case),
    }


def main() -> int:
    """Answer every case of standard input."""
    os.environ.update(DS_ACCELERATOR="cpu", TORCHDYNAMO_DISABLE="1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import deepspeed

    if "--version" in sys.argv:
        print("deepspeed", deepspeed.__version__)
        return 0
    forks.answer_all(judge)
    return 0


if __name__ == "__main__":
    sys.exit(main())
