"""Runs Galvatron's own reading of its JSON on a machine without GPUs.

Standard input holds one JSON object a line, ``{"name", "world_size", "config", "overrides"}``; standard output answers
with one line each, ``{"name", "accepted", "step", "error", "plan", "batch", "chunks", "model"}``. GALVATRON_SOURCE
names a checkout of Galvatron 2.4.1, of which no package is published.

What is real: the fields of its arguments and their types (``GalvatronRuntimeArgs``, which takes no unknown ones here),
``get_hybrid_parallel_configs_api``, ``check_hp_config`` and ``get_chunks`` over PyTorch's fake backend. What stands in:
packages that reading needs not (scipy, flash attention), and the YAML that the overrides are laid over.
"""

# ruff: noqa: PLC0415  -- Galvatron and PyTorch are imported after their stand-ins are in place

import contextlib
import io
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import forks
import steps
from stand_ins import stand_in_for

ABSENT = ("scipy", "flash_attn", "transformer_engine", "apex", "triton", "h5py", "sentencepiece")


def load() -> Any:
    """Import Galvatron's reader with stand-ins for what it needs not."""
    os.environ.update(TORCHDYNAMO_DISABLE="1", TORCH_COMPILE_DISABLE="1")
    import torch._dynamo
    import torch.utils.flop_counter  # noqa: F401  -- both look for triton: before the stand-in

    stand_in_for(ABSENT)
    sys.path.insert(0, os.environ["GALVATRON_SOURCE"])
    runtime = types.ModuleType("galvatron.core.runtime")  # its own __init__ patches CUDA modules
    runtime.__path__ = [str(Path(os.environ["GALVATRON_SOURCE"]) / "galvatron" / "core" / "runtime")]
    sys.modules[runtime.__name__] = runtime
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from galvatron.core.runtime import args_schema, hybrid_parallel_config
    return types.SimpleNamespace(args=args_schema.GalvatronRuntimeArgs, reader=hybrid_parallel_config)


def arguments_of(galvatron: Any, case: dict[str, Any], config: str) -> Any:
    """Arguments that the overrides and the JSON's path make; a field that they do not have is refused."""
    told: dict[str, Any] = {"parallel": {"galvatron_config_path": config}}
    for override in case["overrides"]:
        name, _, value = override.partition("=")
        root, section, field = name.split(".")
        known = galvatron.args.model_fields[section].annotation.model_fields
        if root != "runtime" or field not in known:
            raise forks.RefusedError("overrides", f"{name} is no field")
        told.setdefault(section, {})[field] = value
    return galvatron.args(**told)


def judge(galvatron: Any, case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=case["world_size"], store=FakeStore())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "galvatron_config.json"
        file.write_text(case["config"], encoding="utf-8")
        with steps.step("overrides"):
            args = arguments_of(galvatron, case, str(file))
        with steps.step("read"):
            plan = galvatron.reader.get_hybrid_parallel_configs_api(args)
    with steps.step("check"):
        galvatron.reader.check_hp_config(plan, [args.model.num_layers])
        chunks = galvatron.reader.get_chunks(args)
    plan |= {"pipeline_type": args.parallel.pipeline_type, "sequence_parallel": args.train.sequence_parallel}
    plan |= {"mixed_precision": args.parallel.mixed_precision, "vocab_sdp": args.parallel.vocab_sdp}
    model = {name: getattr(args.model, name) for name in ("num_layers", "hidden_size", "num_attention_heads")}
    return {"plan": plan, "batch": args.train.global_batch_size, "chunks": chunks, "model": model}


def main() -> int:
    """Answer every case of standard input."""
    galvatron = load()
    forks.answer_all(lambda case: judge(galvatron, case))
    return 0


if __name__ == "__main__":
    sys.exit(main())
