"""Values that JAX would silently change are refused; reductions take every dtype."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog
from sawlog.errors import LogValueError, UnsupportedJaxError
from tests.thorough import pairs

TOO_LARGE = [
    (np.int64(3_000_000_000), "3000000000"),
    (-(2**31) - 1, "-2147483649"),
    (2**40, "1099511627776"),
    (2**70, "1180591620717411303424"),
    (np.array([1, 2**33]), "8589934592"),
    (np.uint64(2**32), "4294967296"),
    (1e300, "1e+300"),
    (np.array([0.0, -1e39]), "-1e+39"),
]


@pytest.mark.parametrize(("value", "said"), TOO_LARGE, ids=str)
@pytest.mark.parametrize("heard", [True, False])
def test_numbers_that_do_not_fit(value: Any, said: str, heard: bool) -> None:
    for call in (
        lambda x: sawlog.log({"n": value}),
        lambda x: sawlog.log("n", [x, value]),
        lambda x: sawlog.log({"x": x}, frame=value),
    ):
        with pytest.raises(LogValueError, match=re.escape(said)) as caught:
            (sawlog.spool if heard else jax.jit)(call)(1.0)
        assert "test_values.py" in str(caught.value)


def test_numbers_that_fit() -> None:
    fit = {
        "most": 2**31 - 1,
        "least": np.int64(-(2**31)),
        "unsigned": np.uint64(2**32 - 1),
        "infinity": float("inf"),
        "nan": np.float64("nan"),
        "float": np.float64(3e38),
        "none": np.zeros(0),
        "bool": True,
    }
    _, logs = sawlog.spool(lambda: sawlog.log(fit))()
    assert set(logs) == set(fit)
    for name, value in fit.items():
        np.testing.assert_array_equal(logs[name], np.asarray(value).astype(logs[name].dtype))
        assert logs[name].dtype.kind == np.asarray(value).dtype.kind
    with jax.enable_x64(True):
        _, logs = sawlog.spool(lambda: sawlog.log({"n": 2**40, "x": 1e300}, step=2**41))()
        assert (int(logs["n"]), float(logs["x"]), int(logs.step["n"])) == (2**40, 1e300, 2**41)


@pytest.mark.parametrize(
    "value", [np.datetime64("2020"), np.array(["a"]), jax.ShapeDtypeStruct((), np.float32)], ids=str
)
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(LogValueError, match=r"test_values\.py"):
        sawlog.spool(lambda: sawlog.log({"x": value}))()


def logged_thrice(x: Any) -> None:
    lax.scan(lambda c, _: (c, sawlog.log({"c": c})), x, None, length=3)


DTYPES = [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, np.float32, np.complex64, np.int8, np.bool_]


@pytest.mark.parametrize(
    ("dtype", "promotion"), pairs(DTYPES, ["strict", "standard"], few=1), ids=str
)
def test_reductions_of_every_dtype(dtype: Any, promotion: str) -> None:
    one = jnp.ones((), dtype)
    wanted = {"mean": 1, "std": 0, "var": 0, "sum": 3, "first": 1, "last": 1, "count": 3}
    with jax.numpy_dtype_promotion(promotion):
        for mode, answer in wanted.items():
            _, logs = sawlog.spool(logged_thrice, reduce=mode)(one)
            assert complex(logs["c"].astype(np.complex64)) == answer, mode


def test_keys_have_no_mean() -> None:
    key = jax.random.key(3)
    with pytest.raises(LogValueError, match="PRNG keys have no mean"):
        sawlog.spool(logged_thrice, reduce="mean")(key)
    _, logs = sawlog.spool(logged_thrice, reduce="last")(key)
    assert jax.random.key_data(logs["c"]).tolist() == jax.random.key_data(key).tolist()


SETTINGS = ["jax_remat3", "jax_custom_vjp3", "jax_custom_jvp3", "jax_scan3"]


@pytest.mark.parametrize("name", [name for name in SETTINGS if hasattr(jax.config, name)])
def test_settings_under_which_logs_would_count_twice(name: str) -> None:
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    try:
        with pytest.raises(UnsupportedJaxError, match=name):
            sawlog.spool(lambda x: sawlog.log({"x": x}))(1.0)
    finally:
        jax.config.update(name, before)


RETURNS_LOGS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "checkpoint": jax.checkpoint,
    "jit in checkpoint": lambda f: jax.checkpoint(jax.jit(f)),
}
RETURNS_NONE = {
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x),
    "jit in cond": lambda f: lambda x: lax.cond(x.sum() > 0, jax.jit(f), lambda x: x, x),
    "cond under vmap": lambda f: jax.vmap(lambda x: lax.cond(x > 0, f, lambda x: x, x)),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "checkpoint in scan": lambda f: (
        lambda x: lax.scan(lambda c, _: (jax.checkpoint(f)(c), None), x, None, length=2)[0]
    ),
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda i, c: f(c), x),
    "map": lambda f: lambda x: lax.map(f, x),
}


@pytest.mark.parametrize("name", [*RETURNS_LOGS, *RETURNS_NONE])
def test_what_log_returns(name: str) -> None:
    found: list = []

    def f(x):
        found.append(sawlog.log({"x": x}, step=1))
        return x * 2

    around = (RETURNS_LOGS | RETURNS_NONE)[name]
    around(f)(jnp.ones(2))  # whether somebody listens makes no difference
    sawlog.spool(around(f))(jnp.ones(2))
    kind = sawlog.logdict if name in RETURNS_LOGS else type(None)
    assert len(found) >= 2
    assert {type(each) for each in found} == {kind}
    if name == "plain":
        np.testing.assert_array_equal(found[0]["x"], [1, 1])
        assert found[0].step["x"] == 1
