"""Part costs of explicit layouts, priced once for each strategy: splits, schedules and chunks change none of them."""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

from costmodels.layer_costs import PartCosts, price_parts
from costmodels.pricing import Pricing
from costmodels.table import StrategyTable, TableKey, key_of, read_only

KEPT: Final = 512  # tables of a few strategies, some 50 KiB each


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A pricing as a key: equal where everything is, the constants where they are the same objects."""

    pricing: Pricing

    @property
    def _facts(self) -> tuple[object, ...]:
        pricing = self.pricing
        rooms = (id(getattr(pricing.constants, room.name)) for room in fields(pricing.constants))
        varying = (pricing.clock, pricing.nodes, pricing.blocks, pricing.speeds)
        return (pricing.model, pricing.job, pricing.island, *varying, *rooms)

    def __hash__(self) -> int:
        return hash(self._facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self._facts == other._facts


def known_parts(pricing: Pricing, table: StrategyTable) -> PartCosts:
    """Return what :func:`~costmodels.layer_costs.price_parts` gives for a few strategies, priced once for all layouts.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island, constants.
    table : StrategyTable
        The strategies of one layout with its pipeline degree and micro-batch.

    Returns
    -------
    PartCosts
        Shared: its arrays cannot be written to.
    """
    return _priced(_Known(pricing), key_of(table))


@lru_cache(maxsize=KEPT)
def _priced(known: _Known, key: TableKey) -> PartCosts:
    costs = price_parts(known.pricing, key.table())
    read_only(costs)
    return costs
