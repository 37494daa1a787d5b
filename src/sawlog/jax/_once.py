"""A log runs as often as the program comes there, though JAX would run it once, or twice.

Two habits of differentiation need a hand. Work that does not change from one iteration to the next
is hoisted out of a differentiated ``scan``; a log must stay in its loop. And a ``while_loop`` that
is linearised, or differentiated inside ``checkpoint``, is run for its known part and again for the
rest; the second run must not log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from jax.extend.core.primitives import cond_p, jit_p, remat_p, scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._handler import Drop
from sawlog.jax._interpreter import Interpreter
from sawlog.jax._primitive import (
    SITE_PRIMITIVES,
    context,
    has_site_effect,
    in_context,
    subjaxprs,
)

_HOISTING = "hoisting"


def _has_sites(params: dict[str, Any]) -> bool:
    return "site" in params or any(has_site_effect(j.effects) for j in subjaxprs(params))


def _stays(params: dict[str, Any]) -> bool:
    return context() == _HOISTING and _has_sites(params)


def _hoisting_scope(effects: Iterable[Any]) -> Any:
    return in_context(_HOISTING) if has_site_effect(effects) else contextlib.nullcontext()


def _silenced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an equation without the logs inside."""
    return Interpreter(Drop(SITE_PRIMITIVES)).clean(params) if _has_sites(params) else params


_compat.stage_instead_of_running(
    [*SITE_PRIMITIVES, jit_p, cond_p, scan_p, while_p, remat_p], _stays
)
_compat.wrap_scan_hoisting(_hoisting_scope)
_compat.wrap_while_recomputation(_silenced)
