"""Legality as data: which proposals a framework accepts, and which it should not have accepted.

The rules stand in the TOML tables of this package; :func:`check` judges one proposal, :func:`check_layout` a layout and
:func:`legal_mask` many candidates at once, :func:`request_mask` those of a request.
"""

from planner.rules.layout_string import layout_string, parse_layout_string
from planner.rules.mask import LegalMask, legal_mask, request_mask
from planner.rules.nearest import Neighbour, nearest_legal
from planner.rules.proposal import ModelFacts, Proposal, Split, Switches, facts_of, proposals_of
from planner.rules.split import layers_built, virtual_degree
from planner.rules.table import Found, Rule, all_rules, rules_for
from planner.rules.verdict import Violation, accepted_at_launch, broken_rules, check, check_layout

__all__ = [
    "Found",
    "LegalMask",
    "ModelFacts",
    "Neighbour",
    "Proposal",
    "Rule",
    "Split",
    "Switches",
    "Violation",
    "accepted_at_launch",
    "all_rules",
    "broken_rules",
    "check",
    "check_layout",
    "facts_of",
    "layers_built",
    "layout_string",
    "legal_mask",
    "nearest_legal",
    "parse_layout_string",
    "proposals_of",
    "request_mask",
    "rules_for",
    "virtual_degree",
]
