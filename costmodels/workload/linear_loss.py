"""Losses that are computed together with the output matrix: how they cut the logits, what they hold and move.

A loss on whole logits holds several tensors of tokens times vocabulary. These compute the product with the output
matrix and the loss part by part, so that only a part of the logits exists at a time; some make the product again in
the backward pass, others compute the gradients at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hardware.errors import InputError
from hardware.package_table import package_table

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LinearLoss:
    """One implementation; loaded from ``linear_losses.toml`` by :func:`linear_loss`.

    At most one of the ways to cut is stated; where none is, logits never leave the chip.

    Attributes
    ----------
    chunks : int
        Equal parts of a micro-batch's tokens.
    chunk_columns : int
        Columns of a part, for all tokens.
    balanced : bool
        Parts of a power of two of tokens, about as many as the vocabulary is widths of the model.
    recomputed : bool
        The product with the output matrix runs again in the backward pass.
    own_kernels : bool
        On each part runs the loss that the framework has for whole logits, with its bytes and its traffic.
    logit_bytes : float
        Held per logit of a part at its peak [B].
    logit_traffic_bytes : float
        Read and written per logit beside the products, both passes together [B].
    hidden_bytes : float
        Held per element of the hidden states for their gradient [B].
    hidden_pass_bytes : float
        What a product that adds to that gradient moves per element, for every part in columns [B]; 0.0: written once.
    weight_bytes : float
        Held per parameter of the rank's output matrix, beside its gradient sum [B].
    weight_pass_bytes : float
        What each part moves per parameter to add to the gradient of the matrix, beyond its product's result [B].
    source : str
        Where it is read off.
    """

    name: str
    chunks: int = 0
    chunk_columns: int = 0
    balanced: bool = False
    recomputed: bool = False
    own_kernels: bool = False
    logit_bytes: float = 0.0
    logit_traffic_bytes: float = 0.0
    hidden_bytes: float = 0.0
    hidden_pass_bytes: float = 0.0
    weight_bytes: float = 0.0
    weight_pass_bytes: float = 0.0
    source: str = ""

    def __str__(self) -> str:
        """Its name."""
        return self.name

    @property
    def on_chip(self) -> bool:
        """Whether the forward pass writes no logits at all."""
        return not (self.chunks or self.balanced)

    def token_parts(self, tokens: Numbers, columns: Numbers | float, width: int) -> Numbers:
        """Parts that the tokens are cut into.

        Parameters
        ----------
        tokens : ndarray
            Tokens of a micro-batch on a rank.
        columns : ndarray or float
            Columns of its part of the output matrix.
        width : int
            Width of the model.

        Returns
        -------
        ndarray
            Whole numbers from 1, of the shape of the tokens.
        """
        size = np.asarray(tokens, dtype=np.float64)
        if self.chunks:
            size = size / self.chunks
        elif self.balanced:
            ideal = np.ceil(size / np.ceil(np.asarray(columns) / width))
            size = np.minimum(size, 2.0 ** np.ceil(np.log2(np.maximum(ideal, 1.0))))
        parts: Numbers = np.ceil(np.asarray(tokens) / np.maximum(size, 1.0))
        return np.maximum(parts, 1.0)

    def column_parts(self, columns: Numbers | float) -> Numbers:
        """Parts that a rank's columns are cut into.

        Parameters
        ----------
        columns : ndarray or float
            Columns of its part of the output matrix.

        Returns
        -------
        ndarray
            Whole numbers from 1, of their shape.
        """
        size = np.asarray(columns, dtype=np.float64)
        if not self.chunk_columns:
            return np.ones_like(size)
        return np.maximum(np.ceil(size / self.chunk_columns), 1.0)

    def part_of_logits(self, tokens: Numbers, columns: Numbers, width: int) -> Numbers:
        """Logits of a part.

        Parameters
        ----------
        tokens, columns, width
            As of :meth:`token_parts`.

        Returns
        -------
        ndarray
            In elements, of the shape of the tokens.
        """
        return tokens * columns / (self.token_parts(tokens, columns, width) * self.column_parts(columns))


@cache
def _losses() -> Mapping[str, LinearLoss]:
    table = package_table("costmodels.workload", "linear_losses.toml")
    return MappingProxyType({name: LinearLoss(name=name, **fields) for name, fields in table.items()})


def linear_loss(name: str) -> LinearLoss:
    """Return an implementation by name.

    Parameters
    ----------
    name : str
        Such as ``liger``.

    Raises
    ------
    InputError
        No such loss.
    """
    found = _losses().get(name)
    if found is None:
        raise InputError(f"loss {name!r} is not known", allowed=", ".join(_losses()))
    return found
