"""The ends of a vision tower as ops: what makes the input of its layers, and what makes tokens of their output."""

from dataclasses import replace

from costmodels.workload.block import whole_product
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import Tower, TowerProduct
from costmodels.workload.op import Op, Split


def patch_ops(tower: Tower) -> tuple[Op, ...]:
    """Return the products that make the input of a tower's layers.

    Parameters
    ----------
    tower : Tower
        The tower.

    Returns
    -------
    tuple of Op
        Per patch; every tensor-parallel rank computes them whole.
    """
    return tuple(_product(product) for product in tower.patches)


def projector_ops(tower: Tower) -> tuple[Op, ...]:
    """Return the products that make tokens of the language model of the output of a tower's layers.

    Parameters
    ----------
    tower : Tower
        The tower.

    Returns
    -------
    tuple of Op
        Per image token, with the splits of a tower that divides over tp.
    """
    return tuple(_divided(product) for product in tower.projector)


def tower_parameters(tower: Tower) -> tuple[int, int]:
    """Count the parameters of a tower.

    Parameters
    ----------
    tower : Tower
        The tower.

    Returns
    -------
    tuple of int
        Of its patches and layers, and of its projector.
    """
    trunk = tower.trunk
    layers = sum(run.count * sum(op.parameters for op in layer_ops(run.kind, trunk)) for run in trunk.runs)
    patches = sum(op.parameters for op in patch_ops(tower))
    return layers + patches, sum(op.parameters for op in projector_ops(tower))


def _product(product: TowerProduct) -> Op:
    """A product with the parameters around it, in the precision of activations."""
    op = whole_product(product.name, "embedding", product.k, product.n)
    return replace(op, parameters=op.parameters + product.further_parameters, low_precision=False)


def _divided(product: TowerProduct) -> Op:
    op = _product(product)
    if product.by_rows:
        return replace(op, split=Split.ROW, saved_split=Split.TENSOR)
    return replace(op, split=Split.COLUMN, saved_split=Split.REPLICATED)
