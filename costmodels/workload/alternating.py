"""Alternating updates: residual streams of which one passes through a layer, which predicts and corrects the others.

Before a layer every stream becomes a mix of all; behind it, what the layer did to its own stream is added to each, by
weights of the token (Baykal et al., "Alternating Updates for Efficient Transformers", NeurIPS 2023; Gemma 3n).
"""

from dataclasses import replace
from typing import Final

from costmodels.workload.block import norm_op, whole_product
from costmodels.workload.kernels import Kernels
from costmodels.workload.model import ModelSpec
from costmodels.workload.op import Op, OpKind, Split

# Elements moved for each stream by separate kernels. Prediction: the streams laid out by tokens (2), product (2), sum
# (3), laid out again (2). Correction: change repeated (1), product (2), sum (3), laid out again (2).
_PREDICTED: Final = 9.0
_CORRECTED: Final = 8.0


def predict_ops(model: ModelSpec, kernels: Kernels) -> tuple[Op, ...]:
    """Return the op that mixes the streams before a layer; none of a model without alternating updates.

    Its parameters are those of prediction and correction: a norm and a router of the width, coefficients, and a scale.

    Parameters
    ----------
    model : ModelSpec
        The model.
    kernels : Kernels
        Fused: one kernel reads and writes the streams.

    Returns
    -------
    tuple of Op
        It keeps the streams for the gradients of the coefficients.
    """
    if not model.alternating:
        return ()
    streams, hidden = model.streams, model.hidden
    moved = 2.0 * streams + 1.0 if kernels.fused else _PREDICTED * streams + 3.0
    return (
        Op(
            name="predict",
            module="residual",
            kind=OpKind.MEMORY,
            split=Split.SEQUENCE,
            traffic_elements_per_token=moved * hidden,
            saved_elements_per_token=float(model.residual),
            parameters=2 * hidden + streams * hidden + streams**2 + streams**3,
        ),
    )


def correct_ops(model: ModelSpec, kernels: Kernels) -> tuple[Op, ...]:
    """Return the op that adds a layer's change to every stream; none of a model without alternating updates.

    Parameters
    ----------
    model : ModelSpec
        The model.
    kernels : Kernels
        Fused: one kernel reads and writes the streams.

    Returns
    -------
    tuple of Op
        It keeps the change.
    """
    if not model.alternating:
        return ()
    streams, hidden = model.streams, model.hidden
    moved = 2.0 * streams + 2.0 if kernels.fused else _CORRECTED * streams + 3.0
    return (
        Op(
            name="correct",
            module="residual",
            kind=OpKind.MEMORY,
            split=Split.SEQUENCE,
            traffic_elements_per_token=moved * hidden,
            saved_elements_per_token=float(hidden),
        ),
    )


def added_ops(model: ModelSpec) -> tuple[Op, ...]:
    """Return the op that adds a layer's own embedding to all streams but the layer's; none with one stream."""
    if not model.alternating:
        return ()
    return (
        Op(
            name="side_residual",
            module="residual",
            kind=OpKind.MEMORY,
            split=Split.SEQUENCE,
            traffic_elements_per_token=3.0 * (model.streams - 1) * model.hidden,
        ),
    )


def low_rank_ops(rank: int, hidden: int, norm: int, kernels: Kernels) -> tuple[Op, ...]:
    """Return the ops of a low-rank product beside attention, normed and added to the residual (LAuReL).

    Parameters
    ----------
    rank : int
        Its columns between; 0: there is none.
    hidden : int
        Width of the model.
    norm : int
        Parameters of a norm over it.
    kernels : Kernels
        Options of the kernels.

    Returns
    -------
    tuple of Op
        In forward order; whole on every tp rank.
    """
    if not rank:
        return ()
    down = replace(
        whole_product("low_rank_down", "side", hidden, rank),
        saved_elements_per_token=0.0,
        shared_input_elements_per_token=float(hidden),
    )
    up = whole_product("low_rank_up", "side", rank, hidden)
    return (down, up, norm_op("low_rank_norm", hidden, norm, kernels))


def first_op(model: ModelSpec) -> Op:
    """Return the product that makes the other streams of the embedding, each with a matrix of its own."""
    return whole_product("streams_made", "embedding", model.hidden, (model.streams - 1) * model.hidden)


def last_op(model: ModelSpec) -> Op:
    """Return the product that the other streams pass before the mean of all is normed, each with its own matrix."""
    others = (model.streams - 1) * model.hidden
    return replace(first_op(model), name="streams_joined", module="head", saved_elements_per_token=float(others))
