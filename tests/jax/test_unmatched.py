"""Patterns of names, and names that match nothing."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import sawlog
from sawlog._names import ByName, matches, nearest
from sawlog.errors import UnmatchedNameWarning


def program(x):
    def body(x, i):
        sawlog.log({"train/loss": x, "train/accuracy": 2 * x}, tags="cheap", step=i)
        sawlog.log({"eval/loss": -x}, tags="slow", step=i)
        return x + 1.0, None

    return lax.scan(body, x, jnp.arange(6))[0]


PATTERNS = [
    ({"argnames": "train/*"}, ["train/loss", "train/accuracy"]),
    ({"argnames": ["*/loss"]}, ["train/loss", "eval/loss"]),
    ({"argnames": "train/loss"}, ["train/loss"]),
    ({"tags": "ch*"}, ["train/loss", "train/accuracy"]),
    ({"argnames": "*/loss", "tags": "slow"}, ["eval/loss"]),
]


@pytest.mark.parametrize(("options", "names"), PATTERNS, ids=str)
def test_patterns_choose(options, names) -> None:
    assert set(sawlog.spool(program, **options)(1.0)[1]) == set(names)
    calls: list = []
    sawlog.tap(program, calls.append, **options)(1.0)
    assert {key for logs in calls for key in logs} == set(names)


def test_patterns_as_keys_of_options() -> None:
    logs = sawlog.spool(program, reduce={"train/*": "last", "train/loss": "first"})(1.0)[1]
    assert float(logs["train/loss"]) == 1.0  # the name itself goes before a pattern
    assert float(logs["train/accuracy"]) == 12.0
    assert logs["eval/loss"].shape == (6,)
    logs = sawlog.spool(program, capacity={"train/*": 2}, interval={"eval/*": 4})(1.0)[1]
    assert logs["train/loss"].shape == (2,)
    assert logs.step["eval/loss"].tolist() == [0, 4]
    calls: list = []
    sawlog.tap(program, calls.append, interval={"eval/*": 4}, argnames="*/loss")(1.0)
    assert [int(c.step["eval/loss"]) for c in calls if "eval/loss" in c] == [0, 4]
    assert sum("train/loss" in c for c in calls) == 6
    whole = sawlog.spool(program)(1.0)[1]
    assert whole.reduce({"train/*": "max"})["train/loss"].shape == ()


UNMATCHED = [
    ({"argnames": "train/los"}, "'train/los'", "'train/loss'"),
    ({"argnames": ["train/loss", "tain/*"]}, "'tain/*'", "'train/"),
    ({"tags": "cheep"}, "'cheep'", "'cheap'"),
    ({"reduce": {"train/Loss": "mean"}}, "'train/Loss'", "'train/loss'"),
    ({"capacity": {"eval/los": 3}}, "'eval/los'", "'eval/loss'"),
    ({"interval": {"evl/loss": 3}}, "'evl/loss'", "'eval/loss'"),
]


@pytest.mark.parametrize(("options", "asked", "near"), UNMATCHED, ids=str)
def test_what_matches_nothing_is_told_once(options, asked, near) -> None:
    fun = sawlog.spool(lambda x: program(x), **options)
    with pytest.warns(UnmatchedNameWarning) as caught:
        fun(1.0)
    assert len(caught) == 1
    assert asked in str(caught[0].message)
    assert near in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fun(2.0)
        fun(2)  # traced anew


@pytest.mark.parametrize("options", [{"argnames": "nope"}, {"reduce": {"nope": "mean"}}], ids=str)
def test_tap_tells_it_too(options) -> None:
    fun = sawlog.tap(lambda x: program(x), lambda logs: None, **options)
    with pytest.warns(UnmatchedNameWarning, match="nope") as caught:
        assert jax.tree.map(jnp.shape, [fun(1.0), fun(jnp.ones(2))]) == [(), (2,)]
    assert len(caught) == 1


def test_reductions_of_logs_tell_it_too() -> None:
    logs = sawlog.logdict({"loss": jnp.arange(3.0)})
    with pytest.warns(UnmatchedNameWarning, match="'loss'"):
        logs.reduce({"los": "mean"})


def test_the_name_of_a_cotangent_is_known() -> None:
    def f(x):
        return sawlog.log_cotangent("dx", x) * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(sawlog.spool(jax.grad(f), argnames="dx")(1.0)[1]) == ["dx"]
        assert list(sawlog.spool(f, argnames="dx")(1.0)[1]) == []


def test_tracers_in_names() -> None:
    @jax.jit
    def f(i):
        sawlog.log({f"loss_{i}": 1.0})

    with pytest.raises(sawlog.errors.LogValueError, match="layer=i"):
        f(1)
    with pytest.raises(sawlog.errors.LogValueError, match="traced value"):
        jax.vmap(lambda i: sawlog.log(f"loss_{i}", 1.0) and None)(jnp.arange(2))


@pytest.mark.parametrize(
    ("attribute", "hint"),
    [("loss", r"logs\['loss'\]"), ("to_panda", "'to_pandas'"), ("stop", "'step'")],
)
def test_guesses_at_attributes(attribute, hint) -> None:
    logs = sawlog.logdict({"loss": jnp.arange(2.0)}, step={"loss": jnp.arange(2)})
    with pytest.raises(AttributeError, match=hint):
        getattr(logs, attribute)


def test_a_key_that_is_not_there() -> None:
    logs = sawlog.logdict({"loss": jnp.arange(2.0), "accuracy": jnp.arange(2.0)})
    with pytest.raises(KeyError, match="'loss'"):
        logs["los"]
    with pytest.raises(KeyError, match="'accuracy', 'loss'"):
        logs["nope"]


def test_names() -> None:
    assert matches("a[0]", "a[0]")
    assert matches("a*", "ab")
    assert not matches("a", "ab")
    assert not matches("A*", "ab")
    assert nearest("Loss", ["loss", "other"]) == ["loss"]
    assert nearest("loss", ["train/loss", "x"]) == ["train/loss"]
    assert ByName.read({"a*": 1, "ab": 2}).of("ab") == 2
    assert ByName.read({"a*": 1, "*": 3}).of("ac") == 1
    assert ByName.read(5).of("x") == 5


def test_kept_logs_reach_others() -> None:
    calls: list = []
    for options in ({}, {"buffer": 4}, {"interval": 2}, {"reduce": "mean"}):
        calls.clear()
        inner = sawlog.tap(program, calls.append, argnames="train/*", keep_logs=True, **options)
        _, logs = sawlog.spool(inner)(1.0)
        assert {key: value.shape for key, value in logs.items()} == {
            "train/loss": (6,), "train/accuracy": (6,), "eval/loss": (6,),
        }  # fmt: skip
        assert calls
        assert {key for call in calls for key in call} == {"train/loss", "train/accuracy"}
        _, logs = sawlog.spool(sawlog.tap(program, calls.append, **options))(1.0)
        assert list(logs) == []


def _logs_y(x):
    sawlog.log({"y": x})
    return 2 * x


INSIDE = {
    "jit": jax.jit(_logs_y),
    "scan": lambda x: lax.scan(lambda c, _: (_logs_y(c), None), x, None, 1)[0],
    "cond": lambda x: lax.cond(x > 0, _logs_y, lambda x: x, x),
    "checkpoint": jax.checkpoint(_logs_y),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("options", [None, {}, {"buffer": 2}, {"interval": 2}])
def test_kept_logs_of_a_part_with_nothing_that_is_selected(inside, options) -> None:
    def f(x):
        sawlog.log({"x": x})
        return INSIDE[inside](x)

    if options is None:
        inner = sawlog.spool(f, argnames="x", keep_logs=True)
    else:
        inner = sawlog.tap(f, lambda logs: None, argnames="x", keep_logs=True, **options)
    _, logs = sawlog.spool(inner)(3.0)
    assert {key: float(value[0] if value.ndim else value) for key, value in logs.items()} == {
        "x": 3.0, "y": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize("buffer", [None, 2])
def test_kept_logs_of_loops_of_unknown_length(buffer) -> None:
    def f(x):
        def cond(x):
            sawlog.log({"asked": x})
            return x < 5

        def body(x):
            sawlog.log({"x": x})
            return x + 1

        return lax.while_loop(cond, body, x)

    calls: list = []
    inner = sawlog.tap(f, calls.append, argnames="x", keep_logs=True, buffer=buffer)
    _, logs = sawlog.spool(inner, capacity=20)(0)
    assert logs["x"].tolist() == [0, 1, 2, 3, 4]
    assert logs["asked"].tolist() == [0, 1, 2, 3, 4, 5]
    assert sum(int(call["x"].size) for call in calls) == 5
