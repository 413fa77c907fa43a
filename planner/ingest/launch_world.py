"""How many GPUs a launch starts, by its launcher, the batch system's lines and the script's variables."""

import re
from typing import Final

from planner.ingest.option_words import option_of
from planner.ingest.scripts.script import ShellCommand, ShellScript
from planner.ingest.scripts.training_command import titan_script

_PER_NODE: Final = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num-gpus")
_NODES: Final = ("--nnodes", "--num_nodes", "--num-nodes", "-N")
_SLURM_PER_NODE: Final = ("--gpus-per-node", "--gres", "--ntasks-per-node")
_PROCESSES: Final = ("--num_processes", "--num-processes", "-np")
_TOTAL: Final = ("accelerate", "axolotl", "deepspeed", "mpirun")
"""Launchers with an option for all processes of all nodes."""
_ALL_VISIBLE: Final = ("llamafactory-cli", "lmf")
"""Programs that start a process on each accelerator that they see."""


def world_of(command: ShellCommand, script: ShellScript) -> int:
    """GPUs that the launcher's options, the batch system's lines or the script's variables state; 0: none do."""
    words = command.words
    own = command.environment
    total = _count(option_of(words, _PROCESSES)) or _included(option_of(words, ("--include", "-i")))
    if total and command.program in _TOTAL:
        return total
    per_node = _count(option_of(words, _PER_NODE)) or _slurm_per_node(script) or _count(own.get("NPROC_PER_NODE", ""))
    if not per_node and titan_script(words) >= 0:
        per_node = _count(own.get("NGPU", "8"))
    if not per_node and command.program in _ALL_VISIBLE:
        per_node = len([device for device in own.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()])
    stated = option_of(words, _NODES)
    nodes = _count(stated) or _count(option_of(script.directives, ("--nodes", "-N"))) or _count(own.get("NNODES", ""))
    if per_node:
        return per_node * (nodes or (0 if stated else 1))  # a number of nodes that only the running shell knows
    return _count(command.environment.get("WORLD_SIZE", script.variables.get("WORLD_SIZE", "")))


def _included(text: str) -> int:
    """Accelerators that DeepSpeed's ``--include`` names, as in ``a:0,1@b:0,1``; 0: of some host it names none."""
    hosts = [host.partition(":")[2] for host in text.split("@")]
    return sum(len(slots.split(",")) for slots in hosts) if all(hosts) else 0


def _slurm_per_node(script: ShellScript) -> int:
    """GPUs of a node that the batch system's lines ask for; tasks where they name none."""
    return next((found for name in _SLURM_PER_NODE if (found := _count(option_of(script.directives, (name,))))), 0)


def _count(text: str) -> int:
    found = re.search(r"(\d+)$", text)
    return int(found[1][:9]) if found else 0
