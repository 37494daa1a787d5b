"""Comparing logdicts bit for bit, and making odd ones, for the tests of saving and of loggers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from sawlog import logdict
from sawlog.jax._logdict.entries import EmptyKey, LogdictPart, Slot

from .cases.base import is_prng_key

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(bfloat16, float8_e4m3fn, float8_e5m2),
)


def bits(leaf: Any) -> tuple[Any, tuple[int, ...], bytes]:
    """Everything there is to know about an array."""
    if is_prng_key(leaf):
        return (str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes())
    array = np.asarray(leaf)
    return (array.dtype, array.shape, array.tobytes())


def assert_same(found: logdict, wanted: logdict) -> None:
    """The same keys in the same order, layouts, steps, masks, and every bit."""
    assert isinstance(found, logdict)
    assert list(found) == list(wanted)
    assert found._layout.slots == wanted._layout.slots
    assert list(found._layout.empty.items()) == list(wanted._layout.empty.items())
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    for one, two in pairs:
        assert is_prng_key(one) or isinstance(one, np.ndarray)
        assert bits(one) == bits(two)


# -- odd logdicts ----------------------------------------------------------------------------------


@st.composite
def leaves(draw: Any, lead: tuple[int, ...], like: Any = None) -> Any:
    """An array of any bits, or PRNG keys, whose shape begins with ``lead``."""
    dtype, shape = like or draw(_types())
    if dtype == "key":
        size = int(np.prod(lead + shape)) * 2
        data = np.array(draw(st.lists(_words, min_size=size, max_size=size)), np.uint32)
        return jax.random.wrap_key_data(data.reshape(*lead, *shape, 2))
    dtype, shape = np.dtype(dtype), lead + shape
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    data = data & 1 if dtype.kind == "b" else data
    return data.view(dtype).reshape(shape)


_words = st.integers(0, 2**32 - 1)


def _types() -> Any:
    dtypes = st.sampled_from(("key", *DTYPES))
    return st.tuples(dtypes, st.sampled_from(((), (2,), (0,), (1, 2))))


def _narrow(dtype: Any, shape: tuple[int, ...]) -> Any:
    return (dtype if dtype == "key" else jax.dtypes.canonicalize_dtype(dtype), shape)


TREES = ("one", "dict", "list", "tuple", "deep")


def tree_of(kind: str, a: Any, b: Any) -> Any:
    """A value of one of the structures that can be saved."""
    return {
        "one": a,
        "dict": {"b": b, "a": a},
        "list": [a, None, b],
        "tuple": (a,),
        "deep": {"x": (a, [b, {}]), "y": None},
    }[kind]


@st.composite
def kinds(draw: Any) -> dict[str, Any]:
    """All that stays the same for a key from one save to the next."""
    a, b = draw(_types()), draw(_types())
    if "key" in (a[0], b[0]):  # the sum is then computed by JAX, which has no 64 bits here
        a, b = _narrow(*a), _narrow(*b)
    return {
        "outer": draw(st.sampled_from(((), (), (2,), (1, 2)))),
        "batch": draw(st.sampled_from(((), (), (2,)))),
        "tree": draw(st.sampled_from(TREES)),
        "a": a,
        "b": b,
        "steps": draw(st.sampled_from(((), ("step",), ("epoch", "step")))),
    }


@st.composite
def parts(draw: Any, key: str, kind: dict[str, Any]) -> LogdictPart:
    """One key of a logdict."""
    stacked = draw(st.booleans())
    entries = (draw(st.integers(0, 3)),) if stacked else ()
    lead = kind["outer"] + entries + kind["batch"]
    a, b = draw(leaves(lead, kind["a"])), draw(leaves(lead, kind["b"]))
    value = tree_of(kind["tree"], a, b)
    masked = draw(st.booleans())
    counted = draw(st.booleans())
    mask = draw(leaves(lead, ("bool", ()))) if masked else None
    dropped = draw(leaves(kind["outer"], ("int32", ()))) if counted else None
    # Nobody reduces no entries; saved twice, they would look like one save.
    reduction = draw(st.sampled_from((None, "mean"))) if entries != (0,) else None
    first = jax.tree.leaves(value)[0]
    slot = Slot(
        key,
        kind["steps"],
        stacked,
        first.ndim - len(kind["outer"]),
        len(kind["batch"]),
        masked,
        counted,
        reduction,
    )
    steps = tuple(draw(leaves(lead, ("int32", ()))) for _ in kind["steps"])
    return LogdictPart(value, steps, mask, slot, dropped)


KEYS = st.text(st.sampled_from("ab/[]'@. é"), min_size=1, max_size=6)


@st.composite
def logdicts(draw: Any, of: dict[str, Any] | None = None) -> logdict:
    """A logdict such as programs make, and odder ones."""
    chosen = draw(st.dictionaries(KEYS, kinds(), max_size=3)) if of is None else of
    made = [draw(parts(key, kind)) for key, kind in chosen.items()]
    names = draw(st.lists(KEYS, max_size=2, unique=True))
    empty = {name: draw(empty_keys()) for name in names if name not in chosen}
    return logdict._of(made, empty)


@st.composite
def empty_keys(draw: Any) -> EmptyKey:
    """What is known of a key that was never logged."""
    value = tree_of(draw(st.sampled_from(TREES)), draw(leaves((1,))), draw(leaves((1,))))
    found, tree = jax.tree.flatten(value)
    return EmptyKey(tree, tuple(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in found))
