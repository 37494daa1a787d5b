"""Entries for combinators, and what they wrote."""

import itertools

import numpy as np
from hypothesis import strategies as st

from sawlog.records import Entries, Records


def records(**arrays):
    return Records({name: Entries(np.asarray(array)) for name, array in arrays.items()})


@st.composite
def chunks(draw, masked=True):
    """The number of entries of each write, and for each entry whether it was logged."""
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    total = sum(sizes)
    mask = draw(st.none() | st.lists(st.booleans(), min_size=total, max_size=total))
    return np.cumsum([0, *sizes]), None if mask is None else np.array(mask, bool)


def write_in_chunks(sink, ends, values, steps, mask):
    for start, stop in itertools.pairwise(ends):
        part = slice(start, stop)
        own = None if mask is None else mask[part]
        sink.write(Records({"x": Entries(values[part], {"step": steps[part]}, own)}))
