"""Guards of the table of cases: it is large, it is complete, and it can fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

import sawlog

from . import test_cases
from .cases import CASES, SECTIONS, Case, Logs, absent, many, once
from .cases.base import X3, f32
from .cases.compare import same_calls, same_leaf, same_logs, same_tree
from .test_cases import WAYS

REQUIRED = {
    # the rows of the semantics table
    "plain", "several_sites", "jit", "nested_jit", "scan", "fori_loop", "lax_map", "nested_loops",
    "reverse", "while_loop", "cond", "switch", "differing_keys", "vmap", "vmap_of_cond", "grad",
    "value_and_grad", "vjp", "jvp", "linearize", "checkpoint", "policy", "custom_jvp", "custom_vjp",
    "fwd_bwd", "shard_map", "pmap", "reduce", "mismatch",
    # what else the table must have
    "shared_jaxpr", "unroll", "zero_length", "one_length", "batch_size", "associative_scan",
    "before_and_after", "cond_in_scan", "scan_in_cond", "nested_cond", "nested_vmap", "in_axes",
    "out_axes", "unbatched", "collectives", "hessian", "jacfwd", "jacrev", "double_grad", "hvp",
    "loop_invariant", "stop_gradient", "custom_vmap", "custom_linear_solve", "linear_transpose",
    "mesh_2x2", "psum", "replicated", "flax_linen", "flax_nnx", "equinox", "optax", "haiku",
    "diffrax", "lineax", "optimistix", "jaxopt", "blackjax", "numpyro", "forty_keys",
    "pytree_value", "pytree_args", "dtypes", "prng_key", "python_scalars", "steps", "tags",
    "argnames", "prefix", "partial", "method", "closure", "kwargs", "none_args", "scalar_args",
    "static_args", "donation", "numpy_args", "named_scope", "compile_time_eval", "vectorize",
}  # fmt: skip


def missing_features(cases: dict[str, Case]) -> set[str]:
    """The required features that no row has."""
    return REQUIRED - {feature for case in cases.values() for feature in case.features}


def test_table_is_large() -> None:
    assert len(CASES) >= 130


def test_every_required_feature_has_a_row() -> None:
    assert missing_features(CASES) == set()


def test_a_missing_feature_is_noticed() -> None:
    without = {name: case for name, case in CASES.items() if "switch" not in case.features}
    assert "switch" in missing_features(without)


def test_every_section_has_rows_with_docstrings() -> None:
    for section in SECTIONS:
        own = [case for case in CASES.values() if case.build.__module__ == section.__name__]
        assert own, section.__name__
        assert all(case.build.__doc__ for case in own)


def test_most_rows_go_through_every_way() -> None:
    assert {"plain", "spool", "jit_spool", "spool_jit", "tap", "jit_tap", "vmap", "grad"} <= set(
        WAYS
    )
    assert sum(case.ways is None for case in CASES.values()) >= 130
    for flag in ("jit", "tap", "vmap", "grad"):
        assert sum(getattr(case, flag) for case in CASES.values()) >= 100, flag


# --- The harness can fail ---------------------------------------------------------------------


def wrong(case: Case, change: Callable[[Logs], Logs]) -> Case:
    """The same row with another answer."""
    fun, answer = case.program

    def changed(*args, **kwargs):
        out, logs = answer(*args, **kwargs)
        return out, change(logs)

    return dataclasses.replace(case, build=lambda: (fun, changed))


WRONG: dict[str, tuple[str, Callable[[Logs], Logs]]] = {
    "value": ("one_site", lambda logs: {"y": once(X3)}),
    "dtype": ("one_site", lambda logs: {"y": once((X3 * 2).astype(np.float16))}),
    "an axis too many": ("one_site", lambda logs: {"y": many([X3 * 2])}),
    "an axis too few": ("scan_one_length", lambda logs: {"sum": once(f32(2.5))}),
    "missing key": ("one_site", lambda logs: {}),
    "key too many": ("one_site", lambda logs: logs | {"z": once(X3)}),
    "absent key": ("one_site", lambda logs: {"y": absent(X3)}),
    "step": ("step_of_one_site", lambda logs: {"x": once(X3, step=np.int32(6))}),
    "missing step": ("step_of_one_site", lambda logs: {"x": once(X3)}),
    "order": ("two_sites_one_name", lambda logs: {"v": many([X3 * X3, X3])}),
    "entry too few": ("two_sites_one_name", lambda logs: {"v": many([X3])}),
}


CHECKED = [
    (name, check)
    for name in WRONG
    for check in ("spool", "jit_spool", "tap", "jit_tap", "grad")
    if not ("tap" in check and "axis" in name)  # tap sees entries, not their presentation
]


@pytest.mark.parametrize(("name", "check"), CHECKED)
def test_a_wrong_answer_is_reported(name: str, check: str) -> None:
    """Each kind of wrong answer fails, though the right one passes."""
    row, change = WRONG[name]
    WAYS[check](CASES[row])
    with pytest.raises((AssertionError, KeyError, AttributeError)):
        WAYS[check](wrong(CASES[row], change))


@pytest.mark.parametrize("check", sorted(set(WAYS) - {"grad", "round_trip"}))
def test_a_wrong_output_is_reported(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way looks at the output; two compare with the plain program, or the logs alone.

    The plain way does so for rows whose turn it is.
    """
    monkeypatch.setattr(test_cases, "again", lambda case: True)
    case = CASES["one_site"]
    fun, answer = case.program

    def changed(*args):
        out, logs = answer(*args)
        return out + 1, logs

    with pytest.raises(AssertionError):
        WAYS[check](dataclasses.replace(case, build=lambda: (fun, changed)))


def test_a_program_that_is_not_refused_is_reported() -> None:
    """A row that expects an error fails without one."""
    case = dataclasses.replace(CASES["one_site"], spool_error="UnsupportedLoopError")
    with pytest.raises(pytest.fail.Exception):
        WAYS["spool"](case)


def test_a_log_that_binds_something_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain way notices a log that leaves something in the jaxpr."""
    from jax import numpy as jnp

    monkeypatch.setattr(sawlog, "log", lambda data, *rest, **steps: jnp.sin(data["y"]))
    with pytest.raises(AssertionError):
        WAYS["plain"](CASES["one_site"])


def test_comparison_is_strict() -> None:
    """Shapes, dtypes, structures and values all count."""
    for found in (X3[None], X3.astype(np.float64), X3 * np.float32(1.0001)):
        with pytest.raises(AssertionError):
            same_leaf(found, X3, "here", 1e-6)
    with pytest.raises(AssertionError):
        same_tree({"a": X3}, {"b": X3}, "here")


def test_empty_answers_do_not_pass_by_accident() -> None:
    """Logs where none are expected, and none where some are."""
    logs = sawlog.logdict({"a": X3})
    same_logs(sawlog.logdict(), {})
    with pytest.raises(AssertionError):
        same_logs(logs, {})
    with pytest.raises(AssertionError):
        same_logs(sawlog.logdict(), {"a": once(X3)})
    with pytest.raises(AssertionError):
        same_calls([], {"a": once(X3)})
    with pytest.raises(AssertionError):
        same_calls([logs], {})
