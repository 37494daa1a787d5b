"""The table: small JAX programs, each with a hand-written answer.

Every row is entered by a `@case` in one of the modules below; `cases_base` says what a row is, and
`test_cases` runs each in every way that a user might.
"""

from __future__ import annotations

from . import (
    cases_arguments,
    cases_autodiff,
    cases_basics,
    cases_branches,
    cases_calls,
    cases_checkpoint,
    cases_custom,
    cases_equinox,
    cases_errors,
    cases_explicit,
    cases_flax,
    cases_lanes,
    cases_libraries,
    cases_linear,
    cases_loops,
    cases_samplers,
    cases_sharding,
    cases_solvers,
    cases_steps,
    cases_vmap,
)
from .cases_base import CASES, Case, Logged, Logs, absent, many, once

SECTIONS = (
    cases_basics,
    cases_steps,
    cases_arguments,
    cases_calls,
    cases_loops,
    cases_branches,
    cases_vmap,
    cases_lanes,
    cases_autodiff,
    cases_checkpoint,
    cases_custom,
    cases_linear,
    cases_sharding,
    cases_explicit,
    cases_libraries,
    cases_flax,
    cases_equinox,
    cases_solvers,
    cases_samplers,
    cases_errors,
)

__all__ = ["CASES", "SECTIONS", "Case", "Logged", "Logs", "absent", "many", "once"]
