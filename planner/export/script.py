"""The files that start an exported launch: a script for every node, tables of nodes and ranks, a page about them."""

from typing import Final

from hardware.nouns import count
from planner.export.launch import Export

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

_PAGE: Final = """\
# {title}

{nodes} x {per_node}, {framework} {version}.

| file | what |
|---|---|
| `launch.sh` | starts one node; run it on every node |
| `arguments.txt` | the arguments alone, one option a line, quoted for a shell |
| `nodes.tsv` | node rank, host, GPUs in local-rank order: edit the hosts to yours |
| `ranks.tsv` | every rank: host, GPU, and its place in the grid |
| `layout.json` | the plan without any framework's words |
{files}
Start it with the same time on every node:

    {start}./launch.sh

{user}The rendezvous is static, because torchrun's c10d rendezvous
gives out node ranks by address and would undo the placement.

{notes}
"""
_MADE_UP: Final = "Without `USER_ARGS` it trains 20 steps on made-up data. "
_YOURS: Final = "`USER_ARGS` holds what is yours: {says}. "


def launch_script(export: Export) -> str:
    """Text of the shell script that starts one node."""
    lines = [f"export {name}={value}" if value else f"unset {name}" for name, value in export.environment]
    program = export.program
    name = program.script.rsplit("/", maxsplit=1)[-1]
    own, users = export.argument_text.splitlines(), ['"${user_args[@]}" "$@"']
    return _SCRIPT.format(
        script_comment=_SCRIPT_COMMENT.format(script=program.script) if program.script else "",
        script_check=_SCRIPT_CHECK.format(name=name) if program.script else "",
        user_says=program.user_says,
        user_words=program.user_words,
        port=PORT,
        environment="\n".join(lines),
        nodes=len(export.nodes),
        per_node=len(export.nodes[0].gpus),
        target=program.target,
        words=" \\\n    ".join([*users, *own] if program.user_first else [*own, *users]),
    )


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
    program = export.program
    return _PAGE.format(
        title=title,
        nodes=count(len(export.nodes), "node"),
        per_node=count(len(export.nodes[0].gpus), "GPU"),
        framework=export.framework,
        version=export.version,
        files="".join(f"| `{name}` | read by the launch |\n" for name, _ in export.files),
        start=f"TRAIN_SCRIPT={program.script} " if program.script else "",
        user=_MADE_UP if "--mock-data" in program.user_words else _YOURS.format(says=program.user_says),
        notes="\n".join(f"- {note}" for note in export.notes),
    )
