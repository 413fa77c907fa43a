"""Asks whether keys of Megatron-Bridge's overrides name fields of megatron-core's own configuration classes.

Usage: override_fields.py KEYS.toml, in the validators' environment.

Megatron-Bridge's ``model``, ``ddp`` and ``optimizer`` sections inherit from these classes. Its other sections are its
own and are not asked.
"""

import dataclasses
import sys
import tomllib
from pathlib import Path

import harness


def main() -> int:
    """Print the keys that name no field."""
    harness.load("hopper")
    from megatron.core.distributed import DistributedDataParallelConfig  # noqa: PLC0415
    from megatron.core.optimizer import OptimizerConfig  # noqa: PLC0415
    from megatron.core.transformer import TransformerConfig  # noqa: PLC0415

    sections = {"model": TransformerConfig, "ddp": DistributedDataParallelConfig, "optimizer": OptimizerConfig}
    provider = {"model": {"seq_length"}}  # of Megatron-Bridge's GPTModelProvider
    asked, unknown = 0, []
    for entry in tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["key"]:
        for key in entry.get("bridge", ()):  # some are of one framework alone
            section, _, name = key.partition(".")
            if section in sections and name not in provider.get(section, ()):
                asked += 1
                fields = {field.name for field in dataclasses.fields(sections[section])}
                unknown += [] if name in fields else [key]
    print(f"{asked} keys of model, ddp and optimizer: {len(unknown)} unknown {' '.join(unknown)}".rstrip())
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
