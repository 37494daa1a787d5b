"""Error texts of options, of reading logs, and of the package."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import errors
from sawlog._optional import require

from .message_helpers import has, message
from .place_programs import line_of


def fine(x: Any) -> Any:
    sawlog.log({"x": x})
    return x


BAD_OPTIONS = {
    "reduce": (lambda: sawlog.spool(fine, reduce="average"), ["'average'", "mean", "Hint:"]),
    "reduce by key": (lambda: sawlog.spool(fine, reduce={"x": "avg"}), ["'avg'", "mean", "Hint:"]),
    "reduce a number": (lambda: sawlog.spool(fine, reduce=3), ["3", "mean", "Hint:"]),
    "logs.reduce": (lambda: sawlog.spool(fine)(1.0)[1].reduce("avg"), ["'avg'", "mean", "Hint:"]),
    "interval zero": (lambda: sawlog.spool(fine, interval=0), ["interval", "0"]),
    "interval negative": (lambda: sawlog.spool(fine, interval=-2), ["interval", "-2"]),
    "interval float": (lambda: sawlog.spool(fine, interval=1.5), ["interval", "1.5"]),
    "interval bool": (lambda: sawlog.spool(fine, interval=True), ["interval", "True"]),
    "argnames": (lambda: sawlog.spool(fine, argnames=["x", 3]), ["argnames", "3"]),
    "argnames number": (lambda: sawlog.spool(fine, argnames=3), ["argnames", "3"]),
    "tags": (lambda: sawlog.spool(fine, tags=[None]), ["tags", "None"]),
    "tags number": (lambda: sawlog.spool(fine, tags=3), ["tags", "3"]),
    "prefix": (lambda: sawlog.spool(fine, prefix=3), ["prefix", "3"]),
    "tap argnames": (lambda: sawlog.tap(fine, argnames=[3]), ["argnames", "3"]),
    "tap tags": (lambda: sawlog.tap(fine, tags=3), ["tags", "3"]),
    "tap prefix": (lambda: sawlog.tap(fine, prefix=3), ["prefix", "3"]),
    "callback": (lambda: sawlog.tap(fine, 3), ["callback", "int", "Hint:"]),
    "spool": (lambda: sawlog.spool(3), ["spool", "int", "spool(f)(x)", "Hint:"]),
    "tap": (lambda: sawlog.tap(np.float32(1)), ["tap", "float32", "tap(f)(x)", "Hint:"]),
    "strip": (lambda: sawlog.strip("f"), ["strip", "str", "strip(f)(x)", "Hint:"]),
    "slice": (lambda: sawlog.logdict({"a": jnp.arange(3)}).slice[1], ["slice", "1", "Hint:"]),
    "steps": (lambda: sawlog.logdict({"a": 1}, step={"b": 1}), ["'step'", "'b'"]),
    "argument": (lambda: sawlog.spool(lambda x, y: x)(1.0, y={"k": set()}), ["k", "set", "Hint:"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(case: str) -> None:
    call, words = BAD_OPTIONS[case]
    has(message(errors.ArgumentError, call), *words)


def test_the_path_of_an_argument_reads_like_the_call() -> None:
    """`args[1]['u']` rather than positions in a pytree of sawlog's own."""

    def f(x: Any, other: Any) -> Any:
        return x

    text = message(errors.ArgumentError, sawlog.spool(f), 1.0, {"u": set()})
    assert re.search(r"(args\[1\]|other)\['u'\]", text)
    text = message(errors.ArgumentError, sawlog.spool(f), 1.0, other={"u": set()})
    assert re.search(r"(kwargs\['other'\]|other)\['u'\]", text)


def test_the_hint_for_a_callback_is_about_callbacks() -> None:
    text = message(errors.ArgumentError, sawlog.tap, fine, 3)
    assert "callback(f)(x)" not in text
    has(text, "Hint:", "tap(")


def test_the_reverse_of_entries_that_may_be_missing() -> None:
    def f(x: Any) -> None:
        lax.map(lambda v: lax.cond(v > 0, lambda: sawlog.log({"v": v}), lambda: None), x)

    reverse = jax.jit(lambda x: sawlog.spool(f)(x)[1].slice[::-1])
    has(message(errors.ArgumentError, reverse, jnp.ones(3)), "'v'", "-1", "Hint:")


# -- reading logs ----------------------------------------------------------------------------------


def test_unknown_step_axes_list_the_known_ones() -> None:
    logs = sawlog.logdict({"a": 1, "b": 2}, step={"a": 1}, episode={"b": 2})
    with pytest.raises(AttributeError) as caught:
        logs.stpe  # noqa: B018
    has(str(caught.value), "'stpe'", "episode, step", "Hint:")
    with pytest.raises(AttributeError, match="none"):
        sawlog.logdict({"a": 1}).step  # noqa: B018
    with pytest.raises(AttributeError, match="_private"):
        logs._private  # noqa: B018
    assert not hasattr(logs, "other")


def test_missing_keys() -> None:
    logs = sawlog.spool(fine)(1.0)[1]
    with pytest.raises(errors.UnknownLogError, match="missing"):
        logs["missing"]
    with pytest.raises(KeyError, match="missing"):
        logs.entries()["missing"]


# -- the package -----------------------------------------------------------------------------------


def test_missing_step_axes() -> None:
    logs = sawlog.logdict({"loss": jnp.arange(3.0)}, step={"loss": jnp.arange(3)})
    text = message(errors.UnknownLogError, lambda: logs.steps["stp"])
    has(text, "Nothing has a step axis 'stp'", "Hint:", "'step'")
    text = message(errors.UnknownLogError, lambda: logs.step["los"])
    has(text, "step axis 'step' under 'los'", "Hint:", "'loss'")
    doubled = jax.tree.map(lambda x: 2 * x, logs.steps)  # still a pytree, and a dict
    np.testing.assert_array_equal(doubled["step"]["loss"], [0, 2, 4])
    assert dict(logs.step).keys() == {"loss"}


def test_a_picture_of_traced_logs() -> None:
    def f(x):
        logs = sawlog.spool(lambda x: [sawlog.log({"x": x * i}) for i in range(3)] and x)(x)[1]
        logs.plot()

    has(message(errors.ArgumentError, jax.jit(f), 1.0), "traced", "Hint:", "draw them outside")


def test_arguments_of_save_and_concat(tmp_path: Any) -> None:
    text = message(errors.ArgumentError, sawlog.save, "a", "b")
    has(text, "got str instead of logs", "Hint:", 'sawlog.save("runs/1", logs)')
    logs = sawlog.logdict({"x": jnp.arange(2.0)})
    has(message(errors.ArgumentError, sawlog.save, logs, logs), "got logdict instead of a path")
    has(message(errors.ArgumentError, sawlog.save, tmp_path / "a", None), "NoneType", "logs")
    assert not list(tmp_path.iterdir())
    for joined in (sawlog.concat(logs, logs), sawlog.concat([logs, logs]), logs + logs):
        np.testing.assert_array_equal(joined["x"], [0, 1, 0, 1])
    np.testing.assert_array_equal(sawlog.concat(logs)["x"], [0, 1])
    assert list(sawlog.concat()) == list(sawlog.concat([])) == []
    has(message(errors.ArgumentError, sawlog.concat, logs, {"x": 1}), "dict among them", "Hint:")


def test_missing_package() -> None:
    with pytest.raises(errors.MissingPackageError) as caught:
        require("no_such_package_at_all", "wandb", "the W&B sink")
    has(str(caught.value), "the W&B sink", "'no_such_package_at_all'", "Hint:", '"sawlog[wandb]"')
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "no_such_package_at_all"
    assert isinstance(caught.value.__cause__, ImportError)
    submodule = "no_such_package_at_all.inner"
    with pytest.raises(errors.MissingPackageError, match="no_such_package_at_all"):
        require(submodule, "x", "y")
    assert require("json", "none", "this test") is sys.modules["json"]


def test_a_broken_package_is_not_called_missing(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "broken_package_for_sawlog.py").write_text("import another_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="another_that_is_not_there") as caught:
        require("broken_package_for_sawlog", "x", "y")
    assert not isinstance(caught.value, errors.SawlogError)


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError) as caught:
        sawlog.spol  # noqa: B018
    has(str(caught.value), "'spol'", "Hint:", "spool", "tap")


def test_callback_error() -> None:
    """Inside of a compiled program JAX wraps what the callback raised; the text survives."""

    def callback(logs: Any) -> None:
        raise LookupError("no such run")

    def f(x: Any) -> Any:
        sawlog.log({"x": x})  # callback site
        return x

    def run() -> None:
        jax.block_until_ready(jax.jit(sawlog.tap(f, callback))(1.0))
        jax.effects_barrier()

    with pytest.raises(Exception, match="no such run") as caught:
        run()
    has(
        str(caught.value), "CallbackError", "LookupError", "'x'", line_of(__file__, "callback site")
    )


FAMILY = {
    "MissingPackageError": ImportError,
    "LogValueError": TypeError,
    "ArgumentError": TypeError,
    "LogMismatchError": ValueError,
    "UnsupportedPrimitiveError": NotImplementedError,
    "UnsupportedLoopError": NotImplementedError,
    "LogPlacementError": RuntimeError,
    "CallbackError": RuntimeError,
    "UnknownLogError": KeyError,
}


def test_every_error_has_a_base_and_a_test() -> None:
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SawlogError)
    }
    elsewhere = {name for name, value in classes.items() if issubclass(value, errors.StoreError)}
    elsewhere |= {"CaptureError", "UncoveredError", "WeightsMismatchError"}  # in tests/torch
    elsewhere |= {"MixedExamplesError"}  # in tests/torch/test_summands.py
    elsewhere |= {"UnsupportedJaxError"}  # in test_versions.py
    elsewhere |= {"SinkTimeoutError"}  # in tests/sinks
    elsewhere |= {"ProcessLostError"}  # in tests/torch/test_ranks.py
    elsewhere |= {"ReplayError"}  # in tests/jax/training
    assert set(classes) - elsewhere == {"SawlogError", *FAMILY}
    here = Path(__file__).parent
    text = "".join(path.read_text() for path in here.glob("test_messages*.py"))
    for name, base in FAMILY.items():
        assert issubclass(classes[name], base)
        assert classes[name].__doc__
        assert not hasattr(builtins, name)
        assert f"errors.{name}" in text or name == "CallbackError"
