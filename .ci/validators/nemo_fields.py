"""Asks whether keys of NeMo 2's overrides are parameters of its strategy and precision plugin, read off their source.

Usage: nemo_fields.py KEYS.toml, in the environment of NeMo.

NeMo's strategy takes any keyword without a word, so that a wrong key would be lost: names are all that its side checks.
What the overrides do is asked by nemo_plans.py.
"""

import ast
import importlib.util
import sys
import tomllib
from pathlib import Path

SOURCES = {
    "trainer.strategy": ("nemo/lightning/pytorch/strategies/megatron_strategy.py", "MegatronStrategy"),
    "trainer.plugins": ("nemo/lightning/pytorch/plugins/mixed_precision.py", "MegatronMixedPrecision"),
}


def parameters(path: Path, name: str) -> set[str]:
    """Parameters of the constructor of a class."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    given = method.args
                    return {argument.arg for argument in (*given.args, *given.kwonlyargs)} - {"self"}
    raise SystemExit(f"{path} has no {name}")


def dataclass_fields(path: Path, name: str) -> set[str]:
    """Fields of a dataclass."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
    raise SystemExit(f"{path} has no {name}")


def main() -> int:
    """Print the keys that name no parameter."""
    table = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    keys = [key for entry in table["key"] for key in entry.get("nemo", ())]
    keys += [word.partition("=")[0] for entry in table["precision"].values() for word in entry.get("nemo", ())]
    found = importlib.util.find_spec("nemo")
    root = Path(found.submodule_search_locations[0]).parent if found and found.submodule_search_locations else Path()
    real: set[str] = set()
    unknown = []
    asked = 0
    for section, (path, name) in SOURCES.items():
        names = parameters(root / path, name)
        real |= names
        for key in sorted({key for key in keys if key.startswith(section + ".")}):
            asked += 1
            unknown += [] if key.split(".")[2] in names else [key]
    told = set(table["nemo_strategy"]["names"])
    print(f"{asked} keys of NeMo's strategy and precision: {len(unknown)} unknown {' '.join(unknown)}".rstrip())
    print(f"{len(real)} parameters; the table lacks {sorted(real - told)}, has besides {sorted(told - real)}")
    optimizer = dataclass_fields(root / "megatron/core/optimizer/optimizer_config.py", "OptimizerConfig")
    differing = optimizer ^ set(table["nemo_fields"]["optim.config"])
    told_apart = " ".join(sorted(differing))
    print(f"{len(optimizer)} fields of the optimizer's configuration; {len(differing)} differ {told_apart}")
    return int(bool(unknown or real ^ told or differing))


if __name__ == "__main__":
    sys.exit(main())
