"""Layout strings of pipelines: written, read back, and refused outside Megatron-core's grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import InputError
from planner.rules import ModelFacts, Proposal, Split, layers_built, layout_string, parse_layout_string

LAYERS = st.integers(1, 4).flatmap(
    lambda vpp: st.lists(st.lists(st.integers(0, 9), min_size=vpp, max_size=vpp), min_size=1, max_size=8)
)


@given(layers=LAYERS, mtp=st.integers(0, 3))
def test_layout_strings_read_back(layers, mtp):
    table = tuple(tuple(stage) for stage in layers)
    text = layout_string(table, mtp)
    assert parse_layout_string(text, len(table)) == table
    assert text.startswith("E")
    assert text.endswith("L")
    total = sum(map(sum, table))
    proposal = Proposal(
        world=len(table),
        pp=len(table),
        vpp=len(table[0]),
        model=ModelFacts(layers=total, mtp=mtp),
        split=Split(layout=text),
    )
    assert layers_built(proposal) == table


@pytest.mark.parametrize(
    ("text", "pp", "layers"),
    [
        ("Et*21|t*21|t*19|t*19L", 4, ((21,), (21,), (19,), (19,))),
        ("Et*11|t*11|t*9|t*9|t*10|t*10|t*10|t*10L", 4, ((11, 10), (11, 10), (9, 10), (9, 10))),
        ("Et*3|(tt|)*29m|L", 16, ((3, 2), *((2, 2),) * 13, (2, 0), (2, 0))),
        ("E,tt,|,(t*3|)*2,L", 2, ((2, 3), (3, 0))),
    ],
)
def test_known_layout_strings(text, pp, layers):
    assert parse_layout_string(text, pp) == layers


@pytest.mark.parametrize("text", ["Ex|L", "E((t)*2)*2L", "Et*2*|L", "(Et", "E t|L", "Et*99999999L"])
def test_layout_strings_outside_the_grammar(text):
    with pytest.raises(InputError):
        parse_layout_string(text, 1)


def test_long_equal_stretches_are_grouped():
    assert layout_string(((3, 2), *((2, 2),) * 14, (2, 1)), 1) == "Et*3|(tt|)*30tmL"


# ------------------------------------------------------------------------------------------------ nearest legal ones
