"""The shape of one row of the table: a program, its arguments, its hand-written answer.

A row is a *builder*: a function that returns `(fun, answer)`. `fun` is the JAX program with
`sawlog.log` calls in it. `answer` takes the same arguments and returns `(output, logs)`, where
`logs` maps each key to what must have been logged under it, entry by entry; it is written by hand,
with no sawlog in it. Three words say how the entries are presented:

- `once(value)`: one log call outside loops, the value as it is, with no extra axis;
- `many([v0, v1, ...])`: a leading entry axis, in execution order;
- `absent(like)`: the site did not run; the key is missing, and reading it gives an empty array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

PyTree = Any
Program = tuple[Callable[..., Any], Callable[..., tuple[PyTree, "Logs"]]]


@dataclass(frozen=True)
class Logged:
    """Everything that must be found under one key."""

    values: tuple[PyTree, ...]
    """One pytree for each entry, in execution order."""
    axis: bool
    """Whether the natural presentation has the leading entry axis."""
    steps: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Step name -> one value for each entry."""
    mask: tuple[Any, ...] | None = None
    """For each entry which lanes logged; None where all of them did."""
    like: PyTree = None
    """An example value, needed only where there are no entries."""
    present: bool = True
    """Whether the key is in the logs at all."""

    def entries(self) -> PyTree:
        """All entries, with the leading entry axis."""
        return stack(self.values) if self.values else _no_entries(self.like)

    def natural(self) -> PyTree:
        """The presentation of `logs[key]`."""
        return self.entries() if self.axis else self.values[0]

    def natural_steps(self) -> dict[str, Any]:
        """The presentation of `logs.<step>[key]`, for each step name."""
        return {name: self._present(values, np.int32) for name, values in self.steps.items()}

    def natural_mask(self) -> Any:
        """The presentation of `logs.mask[key]`."""
        assert self.mask is not None
        return self._present(self.mask, np.bool_)

    def _present(self, values: Sequence[Any], dtype: Any) -> Any:
        array = np.asarray(values)
        array = array.astype(dtype) if array.dtype == np.int64 or not len(values) else array
        return array if self.axis else array[0]


Logs = dict[str, Logged]


def once(value: PyTree, *, mask: Any = None, **steps: Any) -> Logged:
    """One log call outside loops: no entry axis."""
    one_each = {name: (step,) for name, step in steps.items()}
    return Logged((value,), False, one_each, None if mask is None else (mask,))


def many(
    values: Sequence[PyTree], *, like: PyTree = None, mask: Any = None, **steps: Any
) -> Logged:
    """Entries in execution order, with the leading entry axis; `like` where there may be none."""
    each = {name: tuple(step) for name, step in steps.items()}
    return Logged(tuple(values), True, each, None if mask is None else tuple(mask), like)


def absent(like: PyTree) -> Logged:
    """No entry at all: the key is not in the logs, and reading it gives shape `(0, ...)`."""
    return Logged((), True, like=like, present=False)


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Stack pytrees of equal structure, leaf by leaf; PRNG keys stay PRNG keys."""
    return jax.tree.map(_stack_leaves, *trees)


def _stack_leaves(*leaves: Any) -> Any:
    if any(is_prng_key(leaf) for leaf in leaves):
        return jnp.stack(leaves)
    return np.stack([np.asarray(leaf) for leaf in leaves])


def _no_entries(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: np.zeros((0, *np.shape(leaf)), np.asarray(leaf).dtype), like)


def is_prng_key(leaf: Any) -> bool:
    """Whether a leaf is an array of new-style PRNG keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    build: Callable[[], Program]
    features: frozenset[str]
    """The parts of the semantics that this row covers."""
    make_args: Callable[[], tuple[Any, ...]]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `spool` and `tap`: argnames, tags, prefix."""
    static_argnums: tuple[int, ...] = ()
    """Arguments that an outer `jax.jit` must hold static."""
    jit: bool = True
    """Whether the arguments may go through an outer `jax.jit`."""
    vmap: bool = True
    """Whether `vmap(spool(fun))` over stacked arguments means something."""
    grad: bool = True
    """Whether `grad(spool(fun))` means something."""
    tap: bool = True
    """Whether the answer is also what tap must see, entry by entry."""
    tap_ordered: bool = True
    """Whether callbacks come in program order (not so on several devices)."""
    mesh_ndim: int = 0
    """How many mesh axes each logged value has: tap calls back for each shard alone."""
    order: tuple[str, ...] | None = None
    """The key of each callback in turn, where the order between keys is part of the answer."""
    spool_error: str | None = None
    """The exception that spool raises, by its name in `sawlog.errors`."""
    tap_error: str | None = None
    """The exception that tap raises."""
    error_words: tuple[str, ...] = ()
    """Words that must be in the message of that exception."""
    rtol: float = 1e-5
    ways: tuple[str, ...] | None = None
    """The ways to run it in, for programs that take long to compile; None for all."""

    @property
    def program(self) -> Program:
        """The program and its answer, the same objects at every use."""
        return _built(self.build)

    @property
    def fun(self) -> Callable[..., Any]:
        """The JAX program."""
        return self.program[0]

    @property
    def args(self) -> tuple[Any, ...]:
        """Fresh arguments."""
        return self.make_args()

    def answer(self, *args: Any, **kwargs: Any) -> tuple[PyTree, Logs]:
        """The hand-written answer for these arguments."""
        return self.program[1](*args, **kwargs)


@cache
def _built(build: Callable[[], Program]) -> Program:
    with jax.ensure_compile_time_eval():  # its arrays outlive the trace in which it is first used
        return build()


CASES: dict[str, Case] = {}


def case(
    *features: str, args: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = (), **fields: Any
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Enter a builder into the table under its own name."""

    def register(build: Callable[[], Program]) -> Callable[[], Program]:
        name = build.__name__
        if name in CASES:
            raise ValueError(f"two cases are called {name!r}")
        make_args = args if callable(args) else lambda: args
        CASES[name] = Case(name, build, frozenset(features), make_args, **fields)
        return build

    return register


def f32(*values: float) -> np.ndarray:
    """A float32 array of the given numbers; a scalar array for a single number."""
    return np.array(values if len(values) > 1 else values[0], np.float32)


X3 = f32(1.0, 2.0, 3.0)
X4 = f32(0.5, -1.0, 2.0, 3.0)
X8 = np.arange(8, dtype=np.float32)
M23 = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = f32(1.5)
ZERO = np.float32(0)
