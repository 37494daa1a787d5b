"""The table: small JAX programs, each with a hand-written answer.

Every row is entered by a `@case` in one of the modules below; `base` says what a row is, and
`test_cases` runs each in every way that a user might.
"""

from __future__ import annotations

from . import (
    arguments,
    autodiff,
    autodiff_constants,
    autodiff_loops,
    autodiff_nested,
    basics,
    basics_values,
    branches,
    branches_in_loops,
    calls,
    checkpoint,
    collectives,
    custom_jvp,
    custom_vjp,
    custom_vjp_in_loops,
    equinox,
    errors,
    explicit,
    flax_linen,
    flax_nnx,
    lanes,
    libraries,
    libraries_equinox,
    linear,
    loops,
    loops_nested,
    loops_other,
    samplers,
    sharding,
    solvers,
    steps,
    vmap,
)
from .base import CASES, Case, Logged, Logs, absent, many, once

SECTIONS = (
    basics,
    basics_values,
    steps,
    arguments,
    calls,
    loops,
    loops_nested,
    loops_other,
    branches,
    branches_in_loops,
    vmap,
    collectives,
    lanes,
    autodiff,
    autodiff_constants,
    autodiff_loops,
    autodiff_nested,
    checkpoint,
    custom_jvp,
    custom_vjp,
    custom_vjp_in_loops,
    linear,
    sharding,
    explicit,
    libraries,
    libraries_equinox,
    flax_linen,
    flax_nnx,
    equinox,
    solvers,
    samplers,
    errors,
)

__all__ = ["CASES", "SECTIONS", "Case", "Logged", "Logs", "absent", "many", "once"]
