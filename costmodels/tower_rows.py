"""Times of the parts of a vision tower, each as a part of a model of its own."""

from dataclasses import dataclass, replace

from costmodels.exchange import PlacedTable
from costmodels.one_part import Part
from costmodels.part_ops import EMBEDDING
from costmodels.pricing import Pricing
from costmodels.table import Floats, StrategyTable
from costmodels.tower import TowerPart, tower_parts


@dataclass(frozen=True, kw_only=True, eq=False)
class TowerRow:
    """The times of one part of a tower; how often it runs in each pass, and how often its weights are trained.

    ``backward`` has shape (S,): whether gradients pass a frozen part depends on what recomputes.
    """

    part: Part
    forward: float
    backward: Floats
    trained: float


def tower_rows(pricing: Pricing, table: StrategyTable) -> tuple[TowerRow, ...]:
    """Return the parts of a model's tower, to be priced beside those of the language model.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island and constants.
    table : StrategyTable
        Strategies of the language model, S rows.

    Returns
    -------
    tuple of TowerRow
        None without a tower.
    """
    parts, tower = tower_parts(pricing.model, pricing.job, table), pricing.model.tower
    if not parts or tower is None:
        return ()
    own, tiers = replace(pricing, model=tower.trunk), pricing.tiers
    tables = {id(part.table): part.table for part in parts}  # two: where frozen parts recompute nothing
    placed = {key: PlacedTable(seen, tiers, pricing.constants.network) for key, seen in tables.items()}
    return tuple(_row(part, own, placed[id(part.table)]) for part in parts)


def _row(part: TowerPart, pricing: Pricing, placed: PlacedTable) -> TowerRow:
    name = EMBEDDING if part.kind is None else part.name  # an end is never recomputed
    return TowerRow(
        part=Part(replace(pricing, job=part.job), placed, name, part.ops),
        forward=float(part.count * part.runs),
        backward=part.count * part.runs * part.backward,
        trained=float(part.count * part.trained),
    )
