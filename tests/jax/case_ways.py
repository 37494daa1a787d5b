"""Ways in which a user might run a program, each compared with the answer of its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import numpy as jnp

import sawlog
import sawlog.errors
from tests.thorough import THOROUGH, one_of

from .cases import Case, Logs
from .cases.base import PyTree
from .cases.compare import same_logs, same_tree


def call(fun: Callable[..., Any], case: Case) -> Any:
    """Call with fresh arguments of the case."""
    return fun(*case.args, **case.kwargs)


def spooled(case: Case, fun: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """spool, with the case's options."""
    return sawlog.spool(case.fun if fun is None else fun, **case.options)


def tapped(case: Case, calls: list, fun: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """tap into a list, with the case's options."""
    return sawlog.tap(case.fun if fun is None else fun, calls.append, **case.options)


_ANSWERS: dict[int, tuple[Case, tuple[PyTree, Logs]]] = {}


def expect(case: Case) -> tuple[PyTree, Logs]:
    """The hand-written answer, computed once for all ways."""
    if id(case) not in _ANSWERS:
        _ANSWERS[id(case)] = (case, case.answer(*case.args, **case.kwargs))
    return _ANSWERS[id(case)][1]


def check_output(case: Case, out: PyTree, where: str) -> None:
    """The output is that of the answer."""
    same_tree(out, expect(case)[0], f"output of {where}", case.rtol)


def check_spool(case: Case, fun: Callable[..., Any], where: str) -> None:
    """A spooled function gives the output and the logs, or the error of the case."""
    if case.spool_error:
        check_refusal(case, fun, case.spool_error)
        return
    out, logs = call(fun, case)
    check_output(case, out, where)
    same_logs(logs, expect(case)[1], case.rtol)


def check_refusal(case: Case, fun: Callable[..., Any], error: str) -> None:
    """The call raises the named error, and its message says what it must."""
    with pytest.raises(getattr(sawlog.errors, error)) as caught:
        call(fun, case)
    message = str(caught.value)
    missing = [word for word in case.error_words if word not in message]
    assert not missing, f"{missing} not in the message: {message}"


def again(case: Case) -> bool:
    """Whether to build the same thing once more, which compiles it once more."""
    return THOROUGH or one_of([True, False, False, False], case.name)


def halved(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Other arguments for the second lane: floats are halved, the rest is as it was."""

    def half(leaf: Any) -> Any:
        is_float = jnp.issubdtype(np.asarray(leaf).dtype, jnp.floating)
        return leaf * np.asarray(0.5, leaf.dtype) if is_float else leaf

    return jax.tree.map(half, (args, kwargs))
