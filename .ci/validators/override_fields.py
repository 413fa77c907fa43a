"""Asks whether keys of Megatron-Bridge's overrides name fields of megatron-core's own configuration classes.

Usage: override_fields.py KEYS.toml, in the validators' environment.

Megatron-Bridge's ``model``, ``ddp`` and ``optimizer`` sections inherit from these classes; its providers of models add
fields, which are read off their source. Its other sections are its own and are not asked.
"""

import ast
import dataclasses
import importlib.util
import sys
import tomllib
from pathlib import Path

import harness

PROVIDERS = ("gpt_provider.py", "hybrid/hybrid_provider.py")


def provider_fields() -> set[str]:
    """Fields that Megatron-Bridge's providers of models have of their own."""
    found = importlib.util.find_spec("megatron")
    roots = list(found.submodule_search_locations or ()) if found else []
    trees = [
        ast.parse((Path(root) / "bridge/models" / name).read_text(encoding="utf-8"))
        for root in roots
        for name in PROVIDERS
        if (Path(root) / "bridge/models" / name).is_file()
    ]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    parts = [part for node in classes for part in node.body if isinstance(part, ast.AnnAssign)]
    return {part.target.id for part in parts if isinstance(part.target, ast.Name)}


def main() -> int:
    """Print the keys that name no field."""
    harness.load("hopper")
    from megatron.core.distributed import DistributedDataParallelConfig  # noqa: PLC0415
    from megatron.core.optimizer import OptimizerConfig  # noqa: PLC0415
    from megatron.core.transformer import TransformerConfig  # noqa: PLC0415

    sections = {"model": TransformerConfig, "ddp": DistributedDataParallelConfig, "optimizer": OptimizerConfig}
    provider = {"model": provider_fields()}
    asked, unknown = 0, []
    for entry in tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["key"]:
        for key in entry.get("bridge", ()):  # some are of one framework alone
            section, _, name = key.partition(".")
            if section in sections:
                asked += 1
                fields = {field.name for field in dataclasses.fields(sections[section])}
                unknown += [] if name in fields or name in provider.get(section, ()) else [key]
    print(f"{asked} keys of model, ddp and optimizer: {len(unknown)} unknown {' '.join(unknown)}".rstrip())
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
