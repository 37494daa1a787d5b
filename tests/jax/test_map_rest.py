"""The rest of a `lax.map` with `batch_size`, which has fewer lanes than the batches before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sawlog

XS, LANES = (1.0, 2.0, 3.0, 4.0, 6.0), 2


def always(x: Any) -> Any:
    sawlog.log({"x": x}, step=0)
    return x


def where(x: Any) -> Any:
    sawlog.log({"x": x}, where=x != 2, step=0)
    return x


def branch(x: Any) -> Any:
    return lax.cond(x != 2, always, lambda x: x, x)


def loop(x: Any) -> Any:
    def body(s: Any) -> Any:
        sawlog.log({"x": s[0]}, step=s[1])
        return s[0] + x, s[1] + 1

    return lax.while_loop(lambda s: s[0] < 12, body, (x, 0))[0]


def loop_by_its_condition(x: Any) -> Any:
    def again(s: Any) -> Any:
        sawlog.log({"x": s[0]}, step=s[1])
        return s[0] < 12

    return lax.while_loop(again, lambda s: (s[0] + x, s[1] + 1), (x, 0))[0]


def turns(x: float, last: bool) -> list[tuple[float, int]]:
    """The entries of a loop; with `last`, those of a condition."""
    count = int(np.ceil(12 / x)) - 1 + last
    return [(x * (i + 1), i) for i in range(count)]


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[float], list]]] = {
    "always": (always, lambda x: [(x, 0)]),
    "where": (where, lambda x: [(x, 0)] if x != 2 else []),
    "branch": (branch, lambda x: [(x, 0)] if x != 2 else []),
    "loop": (loop, lambda x: turns(x, last=False)),
    "condition": (loop_by_its_condition, lambda x: turns(x, last=True)),
}
OPTIONS: dict[str, tuple[dict[str, Any], Callable[[list], list]]] = {
    "capacity": ({"capacity": 40}, lambda entries: entries),
    "window": ({"window": 2}, lambda entries: entries[-2:]),
    "interval": ({"interval": 3, "capacity": 40}, lambda entries: entries[::3]),
    "sum": ({"reduce": "sum"}, lambda entries: [(sum(v for v, _ in entries), entries[-1][1])]),
    "count": ({"reduce": "count"}, lambda entries: [(len(entries), entries[-1][1])]),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_state_has_the_lanes_of_the_batches(program: str, option: str) -> None:
    """Each lane keeps what a lane on its own would, in the output too."""
    (fun, answer), (options, kept) = PROGRAMS[program], OPTIONS[option]
    out, logs = sawlog.spool(lambda xs: lax.map(fun, xs, batch_size=LANES), **options)(
        jnp.asarray(XS)
    )
    np.testing.assert_array_equal(out, [fun(jnp.float32(x)) for x in XS])
    value, mask, step = (np.atleast_2d(x["x"]) for x in (logs, logs.mask, logs.step))
    step = np.broadcast_to(step.reshape(len(value), -1), value.shape)
    for lane in range(LANES):
        found = zip(value[:, lane][mask[:, lane]], step[:, lane][mask[:, lane]], strict=True)
        entries = [entry for x in XS[lane::LANES] for entry in answer(x)]
        assert list(found) == kept(entries), f"lane {lane}"


def test_a_tap_that_reduces() -> None:
    """The end of the program brings one value for each lane."""
    calls: list = []
    sawlog.tap(lambda xs: lax.map(loop, xs, batch_size=LANES), calls.append, reduce="sum")(
        jnp.asarray(XS)
    )
    jax.effects_barrier()
    sums = [sum(v for x in XS[lane::LANES] for v, _ in turns(x, last=False)) for lane in (0, 1)]
    assert [logs["x"].tolist() for logs in calls] == [sums]


@pytest.mark.parametrize("option", ["capacity", "window", "sum", "count"])
@pytest.mark.parametrize("program", ["always", "where", "loop"])
def test_shards_of_lanes(program: str, option: str) -> None:
    """Each shard of each lane keeps its own; the second shard has twice the value."""
    (fun, answer), (options, kept) = PROGRAMS[program], OPTIONS[option]
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))

    def sharded(x: Any) -> Any:
        local = jax.shard_map(
            lambda x: fun(x[0])[None], mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False
        )
        return local(jnp.stack([x, 2 * x]))

    _, logs = sawlog.spool(lambda xs: lax.map(sharded, xs, batch_size=LANES), **options)(
        jnp.asarray(XS)
    )
    value, mask = (np.asarray(x["x"]).reshape(-1, 2, LANES) for x in (logs, logs.mask))
    for shard in (0, 1):
        for lane in range(LANES):
            entries = [entry for x in XS[lane::LANES] for entry in answer(x * (shard + 1))]
            found = value[:, shard, lane][mask[:, shard, lane]]
            assert list(found) == [v for v, _ in kept(entries)], f"shard {shard}, lane {lane}"
