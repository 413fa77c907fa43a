"""How frameworks and baselines of studies cut a model's layers into stages, where that is not evenly."""

import numpy as np

from costmodels.workload.counts import forward_flops, owned_parameters
from costmodels.workload.layers import head_ops, layer_ops
from costmodels.workload.model import ModelSpec


def nanotron_layers(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers per stage as nanotron places them: a stage takes blocks until its share of the compute is exceeded.

    Blocks are embedding, layers, norm, head, cast and loss; layers and head cost their weights, the others nothing
    (``nanotron/models/base.py``, ``build_model``).
    """
    layer = float(owned_parameters(layer_ops(model.kinds()[0], model)))
    costs = [0.0, *[layer] * model.layers, 0.0, float(model.vocab * model.hidden), 0.0, 0.0]
    done = np.cumsum(costs)
    counts, stage = [0] * pp, 0
    for block, reached in enumerate(done):
        counts[stage] += 1 <= block <= model.layers
        stage += bool(reached > done[-1] * (stage + 1) / pp)
    return tuple(counts)


def redistributed_layers(model: ModelSpec, pp: int, seq: int) -> tuple[int, ...]:
    """Layers per stage where the longest stage does as few FLOPs as it can, with the logits on the last one.

    The baseline "Redis" of Yeung et al., "Balancing Pipeline Parallelism with Vocabulary Parallelism", arXiv
    2411.05288; FLOPs are those of whole score matrices (Narayanan et al., arXiv 2104.04473). What the other stages
    cannot share evenly goes to the last of them (github.com/sail-sg/VocabularyParallelism, transformer_block.py).
    """
    layer = sum(forward_flops(op, seq, causal=False) for op in layer_ops(model.kinds()[0], model))
    head = sum(forward_flops(op, seq) for op in head_ops(model)) / layer
    others = pp - 1

    def longest(last: int) -> tuple[float, int]:
        return max(-(-(model.layers - last) // others), last + head), -last

    last = min(range(model.layers + 1), key=longest)
    each, rest = divmod(model.layers - last, others)
    return (*(each + (stage >= others - rest) for stage in range(others)), last)


def libai_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Layers per stage as LiBai places them: it counts more layers than there are, so that the last stage has fewer.

    Up to a layer more per stage but one, from four stages on and where the layers divide among them; the later stages
    take one more of what does not divide.

    References
    ----------
    Oneflow-Inc/libai, ``libai/utils/distributed.py``, ``_init_placement_group``.
    """
    more = min(pp - 1, layers // pp) if pp >= 4 and layers >= 8 and layers % pp == 0 else 0
    each, rest = divmod(layers + more, pp)
    ends = np.cumsum([each + (stage >= pp - rest) for stage in range(pp)])
    return tuple(int(count) for count in np.diff(np.minimum(ends, layers), prepend=0))


def deepspeed_layers(layers: int, pp: int, *, ends: bool) -> tuple[int, ...]:
    """Layers per stage as DeepSpeed's pipeline places modules that it counts: from the front, as full as the fullest.

    ``ends`` is whether the embedding at either end counts as a layer (``type:transformer|embedding`` for
    ``type:transformer``). A last stage may be left without a layer.

    References
    ----------
    microsoft/DeepSpeed, ``deepspeed/runtime/utils.py``, ``partition_balanced``.
    """
    counted = layers + 2 * ends
    each = -(-counted // pp)
    filled = np.minimum(each * np.arange(pp + 1), counted)
    return tuple(int(count) for count in np.diff(np.clip(filled - ends, 0, layers)))
