"""The files that start an exported launch: a script for every node, tables of nodes and ranks, a page about them."""

from typing import Final

from planner.export.launch import Export

PORT: Final = 29500

_SCRIPT: Final = """\
#!/usr/bin/env bash
# Starts this plan on one node; run it on every node of nodes.tsv, at the same time.
#   TRAIN_SCRIPT   the training script, such as /path/to/Megatron-LM/pretrain_gpt.py
#   NODE_RANK      row of nodes.tsv; found by the host's name when it is not set
#   MASTER_ADDR    host of node rank 0; the first row of nodes.tsv when it is not set
#   USER_ARGS      data, tokenizer, learning rate, checkpoints
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
: "${{TRAIN_SCRIPT:?set TRAIN_SCRIPT to the path of pretrain_gpt.py}}"
find_host='$2 == host || $2 == short {{print $1; exit}}'
host=$(hostname)
NODE_RANK=${{NODE_RANK:-$(awk -v host="$host" -v short="${{host%%.*}}" "$find_host" "$here/nodes.tsv")}}
: "${{NODE_RANK:?this host is not in nodes.tsv: set NODE_RANK}}"
MASTER_ADDR=${{MASTER_ADDR:-$(awk 'NR == 2 {{print $2}}' "$here/nodes.tsv")}}
MASTER_PORT=${{MASTER_PORT:-{port}}}
{environment}
# Local rank i uses entry i of this list.
CUDA_VISIBLE_DEVICES=$(awk -v row="$NODE_RANK" 'NR > 1 && $1 == row {{print $3}}' "$here/nodes.tsv")
export CUDA_VISIBLE_DEVICES

read -r -a user_args <<< "${{USER_ARGS:---mock-data --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 20}}"
exec torchrun \\
    --nnodes {nodes} --node-rank "$NODE_RANK" --nproc-per-node {per_node} \\
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\
    "$TRAIN_SCRIPT" \\
    {arguments} \\
    "${{user_args[@]}}" "$@"
"""

_PAGE: Final = """\
# {title}

{nodes} nodes x {per_node} GPUs, {framework} {version}.

| file | what |
|---|---|
| `launch.sh` | starts one node; run it on every node |
| `arguments.txt` | the arguments alone, one option a line, quoted for a shell |
| `nodes.tsv` | node rank, host, GPUs in local-rank order: edit the hosts to yours |
| `ranks.tsv` | every rank: host, GPU, and its place in the grid |
| `layout.json` | the plan without any framework's words |

Start it with the same time on every node:

    TRAIN_SCRIPT=/path/to/Megatron-LM/pretrain_gpt.py ./launch.sh

Without `USER_ARGS` it trains 20 steps on made-up data. The rendezvous is static, because torchrun's c10d rendezvous
gives out node ranks by address and would undo the placement.

{notes}
"""


def launch_script(export: Export) -> str:
    """Text of the shell script that starts one node."""
    lines = [f"export {name}={value}" if value else f"unset {name}" for name, value in export.environment]
    return _SCRIPT.format(
        port=PORT,
        environment="\n".join(lines),
        nodes=len(export.nodes),
        per_node=len(export.nodes[0].gpus),
        arguments=" \\\n    ".join(export.argument_text.splitlines()),
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
    return _PAGE.format(
        title=title,
        nodes=len(export.nodes),
        per_node=len(export.nodes[0].gpus),
        framework=export.framework,
        version=export.version,
        notes="\n".join(f"- {note}" for note in export.notes),
    )
