"""Values in the memory of the host, as programs that offload them have."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

Space = jax.memory.Space

XS = np.arange(4, dtype=np.float32)


def offloading(x: Any) -> Any:
    """Twice: double a value in the memory of the host, and log it there."""

    def body(c: Any, i: Any) -> Any:
        kept = jax.device_put(c * 2, Space.Host)
        sawlog.log({"kept": kept}, step=i)
        sawlog.log({"second": kept}, where=i > 0)
        return jax.device_put(kept, Space.Device), None

    return lax.scan(body, x, jnp.arange(2))[0]


OPTIONS: list[tuple[dict[str, Any], Any]] = [
    ({}, [2 * XS, 4 * XS]),
    ({"reduce": "mean"}, 3 * XS),
    ({"reduce": "last"}, 4 * XS),
    ({"window": 1}, [4 * XS]),
    ({"interval": 2}, [2 * XS]),
    ({"capacity": {"kept": 1}}, [2 * XS]),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=str)
def test_logs_of_values_in_the_memory_of_the_host(options: dict[str, Any], expected: Any) -> None:
    fun = sawlog.spool(offloading, **options)
    out, logs = fun(XS)
    np.testing.assert_array_equal(out, 4 * XS)
    np.testing.assert_array_equal(logs["kept"], expected)
    np.testing.assert_array_equal(np.squeeze(logs["second"]), 4 * XS)
    _, lanes = jax.vmap(fun)(np.stack([XS, XS + 1]))
    np.testing.assert_array_equal(lanes["kept"][0], expected)


def test_the_value_stays_where_it_is() -> None:
    def fun(x):
        kept = jax.device_put(x, Space.Host)
        sawlog.log({"kept": kept})
        assert jax.typeof(kept).memory_space == Space.Host
        marked = sawlog.log_cotangent("gradient", kept)
        assert jax.typeof(marked).memory_space == Space.Host
        return jax.device_put(marked, Space.Device)

    np.testing.assert_array_equal(sawlog.spool(fun)(XS)[1]["kept"], XS)
