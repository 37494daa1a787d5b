"""What is known of values while a program is watched, each rule alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import sawlog
from sawlog.errors import ArgumentError
from sawlog.jax import source_text, watch
from sawlog.jax._watch.labels import Label, _from_parameters, _only_selects
from sawlog.jax._watch.nonfinite import WIDTH, _grade, _number, _shortened
from sawlog.jax._watch.parameters import _name, _search

F32 = jax.ShapeDtypeStruct((2, 3), np.float32)
WIDE = jax.ShapeDtypeStruct((2, 4), np.float32)
HALF = jax.ShapeDtypeStruct((2, 3), np.float16)


def test_data_that_selects_a_part_of_a_parameter() -> None:
    assert _only_selects("dynamic_slice", [0], [1])
    assert not _only_selects("dynamic_slice", [1], [0])  # data at the place of a parameter
    assert not _only_selects("dynamic_slice", [0, 1], [2])
    assert _only_selects("select_n", [1, 2], [0])
    assert not _only_selects("select_n", [1], [0, 2])
    assert not _only_selects("select_n", [0], [1])
    assert not _only_selects("mul", [0], [1])


def equation(name: str) -> Any:
    return SimpleNamespace(primitive=SimpleNamespace(name=name))


def test_what_is_a_parameter_itself() -> None:
    own, other = Label(("w",), True), Label(("b",), True)
    cast = equation("convert_element_type")
    assert _from_parameters(cast, [own], False) == Label(("w",), True)
    assert _from_parameters(cast, [own], True) == Label(("w",), False)
    assert _from_parameters(equation("transpose"), [own], False) == Label(("w",), False)
    assert _from_parameters(cast, [Label(("w",))], False) == Label(("w",), False)
    both = _from_parameters(equation("copy"), [own, other, own], False)
    assert both == Label(("w", "b"), False)
    assert _from_parameters(equation("reduce_sum"), [own], False) == Label()
    assert _from_parameters(equation("argmax"), [own], False) == Label()


def test_parameters_are_found_among_the_arguments() -> None:
    wanted = [(("a", "w"), F32), (("b",), WIDE)]

    def given(*prefixes: str, like: Any = F32) -> list[Any]:
        return [
            leaf for each in prefixes for leaf in (((each, "a", "w"), like), ((each, "b"), WIDE))
        ]

    assert _search(wanted, [(("x",), F32), *given("p"), (("y",), WIDE)]) == wanted
    assert _search(wanted, wanted) == wanted
    for other in (given("p", like=HALF), given("p", like=WIDE), given("p")[::-1], given("p")[:1]):
        with pytest.raises(ArgumentError, match="No argument"):
            _search(wanted, other)
    apart = [(("p", "a", "w"), F32), (("q", "b"), WIDE)]  # of two arguments
    with pytest.raises(ArgumentError, match="No argument"):
        _search(wanted, apart)
    with pytest.raises(ArgumentError, match="2 parts of the arguments are like `params`: p, q"):
        _search(wanted, given("p", "q"))
    with pytest.raises(ArgumentError, match="3 parts"):
        _search(wanted, given("p", "q", "r"))
    with pytest.raises(ArgumentError, match="No argument"):
        _search([], given("p"))


def test_names_of_parameters() -> None:
    assert _name(("dense", "kernel", "value")) == "dense/kernel"
    assert _name(("dense", "raw_value")) == "dense"
    assert _name(("value",)) == "value"
    assert _name(()) == "params"
    assert _name(("value", "kernel")) == "value/kernel"


def test_the_end_of_a_long_line_is_kept() -> None:
    short = _shortened("model.py:3 (f)", "mul made a NaN")
    assert short == b"model.py:3 (f): mul made a NaN"
    line = "/" + "long/" * 200 + "model.py:3 (f)"
    found = _shortened(line, "mul made a NaN")
    assert len(found) == WIDTH
    assert found.startswith(b"...")
    assert found.endswith(b"long/model.py:3 (f): mul made a NaN")
    exact = "x" * (WIDTH - len(": is"))
    assert _shortened(exact, "is") == f"{exact}: is".encode()
    assert _number("model.py:12:4 (f)") == 12
    assert _number("model.py:7 (f)") == 7
    assert _number("argument w") == -1


def test_how_bad_values_are() -> None:
    values = {
        (1.0, 2.0): 0,
        (1.0, np.inf): 1,
        (-np.inf, 0.0): 1,
        (np.nan, np.inf): 2,
        (np.nan, 0.0): 2,
    }
    for pair, grade in values.items():
        assert int(_grade(np.array(pair))) == grade
        assert int(jax.jit(_grade)(jnp.array(pair))) == grade
        number = jnp.array([1 + 1j]).at[0].set(complex(*pair))
        assert int(jax.jit(_grade)(number)) == grade
        swapped = jnp.array([1 + 1j]).at[0].set(complex(*pair[::-1]))
        assert int(jax.jit(_grade)(swapped)) == grade


def nonfinite(fun: Any, *args: Any) -> str:
    _, logs = sawlog.spool(watch(fun, activations=False, gradients=False))(*args)
    return source_text(logs["nonfinite/source"]) if logs else ""


def test_the_first_equation_is_the_one_that_made_it() -> None:
    """Not a later one, nor one whose second operand was so before."""

    def again(x: Any) -> Any:
        def body(h: Any, i: Any) -> Any:
            return jnp.where(i < 2, jnp.log(h * 0), jnp.sqrt(h)), None

        return jax.lax.scan(body, x, jnp.arange(4))[0]

    assert nonfinite(again, jnp.ones(2)).endswith("log made an infinity")
    mask = np.array([0.0, -np.inf], np.float32)
    assert nonfinite(lambda x: x + mask, jnp.ones(2)) == ""
    assert nonfinite(lambda x: mask + x, jnp.ones(2)) == ""
    assert nonfinite(lambda x: (x + mask) * 0, jnp.ones(2)).endswith("mul made a NaN")


def test_dead_units_have_the_prefix() -> None:
    def model(params: Any, x: Any) -> Any:
        return jax.nn.relu(x @ params["w"])

    watched = watch(model, prefix="p/", activations=False, gradients=False, nonfinite=False)
    _, logs = sawlog.spool(watched)({"w": np.array([[1.0, -1.0]], np.float32)}, jnp.ones((3, 1)))
    assert {name: float(each) for name, each in logs.items()} == {"p/dead/w": 0.5}
