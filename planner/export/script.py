"""The files that start an exported launch: a script, tables of nodes and ranks, a page about them.

torchrun is started on every node. srun and mpirun are started once: they take a list of hosts, one for each rank, and
start on each of them a script that finds its rank in the table of ranks.
"""

from types import MappingProxyType
from typing import Final

from hardware.nouns import count
from planner.export.launch import Export
from planner.request import Launcher

PORT: Final = 29500

_SCRIPT: Final = """\
#!/usr/bin/env bash
# Starts this plan on one node; run it on every node of nodes.tsv, at the same time.
{script_comment}#   NODE_RANK      row of nodes.tsv; found by the host's name when it is not set
#   MASTER_ADDR    host of node rank 0; the first row of nodes.tsv when it is not set
#   USER_ARGS      {user_says}
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{script_check}find_host='$2 == host || $2 == short {{print $1; exit}}'
host=$(hostname)
NODE_RANK=${{NODE_RANK:-$(awk -v host="$host" -v short="${{host%%.*}}" "$find_host" "$here/nodes.tsv")}}
: "${{NODE_RANK:?this host is not in nodes.tsv: set NODE_RANK}}"
MASTER_ADDR=${{MASTER_ADDR:-$(awk 'NR == 2 {{print $2}}' "$here/nodes.tsv")}}
MASTER_PORT=${{MASTER_PORT:-{port}}}
{environment}
# Local rank i uses entry i of this list.
CUDA_VISIBLE_DEVICES=$(awk -v row="$NODE_RANK" 'NR > 1 && $1 == row {{print $3}}' "$here/nodes.tsv")
export CUDA_VISIBLE_DEVICES

read -r -a user_args <<< "${{USER_ARGS:-{user_words}}}"
exec torchrun \\
    --nnodes {nodes} --node-rank "$NODE_RANK" --nproc-per-node {per_node} \\
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\
    {target} \\
    {words}
"""
_SCRIPT_COMMENT: Final = "#   TRAIN_SCRIPT   the training script, such as {script}\n"
_SCRIPT_CHECK: Final = ': "${{TRAIN_SCRIPT:?set TRAIN_SCRIPT to the path of {name}}}"\n'

_ONCE: Final = """\
#!/usr/bin/env bash
# Starts this plan on all nodes; run it once{where}.
{script_comment}#   MASTER_ADDR    host of rank 0; the first line of hosts.txt when it is not set
#   USER_ARGS      {user_says}
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{script_check}{start}
"""
_STARTS: Final = MappingProxyType(
    {
        Launcher.SRUN: """\
export SLURM_HOSTFILE="$here/hosts.txt"
exec srun --nodes {nodes} --ntasks {ranks} --distribution arbitrary --kill-on-bad-exit "$here/rank.sh" "$@"\
""",
        Launcher.MPIRUN: """\
forward=()
for name in TRAIN_SCRIPT USER_ARGS MASTER_ADDR MASTER_PORT MODEL_RECIPE CONFIG_YAML; do
    if [[ -v $name ]]; then forward+=(-x "$name"); fi
done
exec mpirun -np {ranks} --hostfile "$here/hosts.txt" --map-by seq --bind-to none "${{forward[@]}}" "$here/rank.sh" "$@"\
""",
    }
)
"""Open MPI and SLURM give rank r to the host of line r."""
_WHERE: Final = MappingProxyType(
    {
        Launcher.SRUN: ", inside an allocation of these hosts: this folder must be the same on all of them",
        Launcher.MPIRUN: ", on one that reaches all of them: this folder must be the same on each",
    }
)
_RANK: Final = """\
#!/usr/bin/env bash
# Starts one rank; RANK is that of the launcher. By hand: RANK=0 MASTER_ADDR=... ./rank.sh on the host of this rank.
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
RANK=${{SLURM_PROCID:-${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-${{RANK:?set RANK}}}}}}}}
read -r HOST LOCAL_RANK < <(awk -v rank="$RANK" 'NR > 1 && $1 == rank {{print $2, $3}}' "$here/ranks.tsv")
WORLD_SIZE={ranks}
LOCAL_WORLD_SIZE={per_node}
MASTER_ADDR=${{MASTER_ADDR:-$(head -n 1 "$here/hosts.txt")}}
MASTER_PORT=${{MASTER_PORT:-{port}}}
export RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
{environment}
# Local rank i uses entry i of this list.
CUDA_VISIBLE_DEVICES=$(awk -v host="$HOST" 'NR > 1 && $2 == host {{print $3}}' "$here/nodes.tsv")
export CUDA_VISIBLE_DEVICES

read -r -a user_args <<< "${{USER_ARGS:-{user_words}}}"
exec "${{PYTHON:-python}}" {target} \\
    {words}
"""

_PAGE: Final = """\
# {title}

{nodes} x {per_node}, {framework} {version}.

| file | what |
|---|---|
| `launch.sh` | {launch} |
| `arguments.txt` | the arguments alone, one option a line, quoted for a shell |
| `nodes.tsv` | node rank, host, GPUs in local-rank order: edit the hosts to yours |
| `ranks.tsv` | every rank: host, GPU, and its place in the grid |
| `layout.json` | the plan without any framework's words |
{files}
{how}

    {start}./launch.sh

{user}{rendezvous}

{notes}
"""
_EVERY: Final = "starts one node; run it on every node"
_STATIC: Final = """\
The rendezvous is static, because torchrun's c10d rendezvous
gives out node ranks by address and would undo the placement."""
_ONCE_FILES: Final = (
    ("hosts.txt", "the host of every rank, one a line: edit the hosts to yours, here and in the tables"),
    ("rank.sh", "starts one rank: finds its GPU in the tables, and sets what torch reads"),
)
_MADE_UP: Final = "Without `USER_ARGS` it trains 20 steps on made-up data. "
_YOURS: Final = "`USER_ARGS` holds what is yours: {says}. "


def launch_script(export: Export) -> str:
    """Text of the shell script that starts one node, or all of them where the launcher reaches them."""
    words = _words(export)
    if not export.launcher.scatters:
        return _SCRIPT.format(**words)
    start = _STARTS[export.launcher].format(nodes=words["nodes"], ranks=words["ranks"])
    return _ONCE.format(where=_WHERE[export.launcher], start=start, **words)


def rank_files(export: Export) -> dict[str, str]:
    """Names and texts of what a launcher needs that puts any rank on any node: a script of a rank, a host a line."""
    if not export.launcher.scatters:
        return {}
    hosts = "".join(f"{row.host}\n" for row in export.ranks)
    return {"rank.sh": _RANK.format(**_words(export)), "hosts.txt": hosts}


def _words(export: Export) -> dict[str, object]:
    """What scripts say of an export."""
    lines = [f"export {name}={value}" if value else f"unset {name}" for name, value in export.environment]
    program = export.program
    name = program.script.rsplit("/", maxsplit=1)[-1]
    own, users = export.argument_text.splitlines(), ['"${user_args[@]}" "$@"']
    return {
        "script_comment": _SCRIPT_COMMENT.format(script=program.script) if program.script else "",
        "script_check": _SCRIPT_CHECK.format(name=name) if program.script else "",
        "user_says": program.user_says,
        "user_words": program.user_words,
        "port": PORT,
        "environment": "\n".join(lines),
        "nodes": len(export.nodes),
        "per_node": len(export.nodes[0].gpus),
        "ranks": len(export.ranks),
        "target": program.target,
        "words": " \\\n    ".join([*users, *own] if program.user_first else [*own, *users]),
    }


def nodes_table(export: Export) -> str:
    """Node rank, host and visible GPUs, tab-separated with a heading."""
    rows = [f"{row.node_rank}\t{row.host}\t{row.visible_devices}" for row in export.nodes]
    return "\n".join(["node_rank\thost\tcuda_visible_devices", *rows]) + "\n"


def ranks_table(export: Export) -> str:
    """Every rank with its host, GPU and coordinates, tab-separated with a heading."""
    names = ("rank", "host", "local_rank", "gpu", "pp", "dp", "cp", "tp", "edp", "ep", "etp")
    rows = ["\t".join(str(getattr(row, name)) for name in names) for row in export.ranks]
    return "\n".join(["\t".join(names), *rows]) + "\n"


def page(export: Export, title: str) -> str:
    """Text of the page that explains the files."""
    program, once = export.program, export.launcher.scatters
    files = [(name, "read by the launch") for name, _ in export.files]
    files += list(_ONCE_FILES) if once else []
    return _PAGE.format(
        title=title,
        nodes=count(len(export.nodes), "node"),
        per_node=count(len(export.nodes[0].gpus), "GPU"),
        framework=export.framework,
        version=export.version,
        launch=f"starts all nodes with {export.launcher}; run it once" if once else _EVERY,
        files="".join(f"| `{name}` | {what} |\n" for name, what in files),
        how=f"Start it once{_WHERE[export.launcher]}:" if once else "Start it with the same time on every node:",
        rendezvous="Rank r runs on the host of line r of `hosts.txt`." if once else _STATIC,
        start=f"TRAIN_SCRIPT={program.script} " if program.script else "",
        user=_MADE_UP if "--mock-data" in program.user_words else _YOURS.format(says=program.user_says),
        notes="\n".join(f"- {note}" for note in export.notes),
    )
