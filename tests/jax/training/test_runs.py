"""Runs, subsets, resuming, stopping, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog import influence
from sawlog.errors import ArgumentError, ReplayError, RoughTrainingWarning
from sawlog.influence import through_training
from sawlog.jax._training.arguments import runner_of
from sawlog.jax._training.curvature import EndInfluence
from sawlog.jax._training.run_bank import RunBank
from sawlog.jax._training.run_data import Epochs, run_keys, subset_weights
from sawlog.jax._training.runner import RunScores
from tests.jax.training import programs

X, Y = (a.astype(np.float32) for a in programs.data(12))
OPTIONS = {
    "data": (X, Y),
    "queries": (X[:2], Y[:2]),
    "init": programs.init,
    "loss": programs.loss,
    "optimizer": optax.sgd(0.1),
    "batch_size": 3,
    "epochs": 1,
    "check": False,
    "progress": False,
}


def scored(**options):
    return through_training(**{**OPTIONS, **options})


def test_pairs_of_runs_have_complementary_halves():
    pairs = [subset_weights(0.5, 10, run, 3) for run in range(4)]
    np.testing.assert_array_equal(pairs[0] + pairs[1], 1)
    np.testing.assert_array_equal(pairs[2] + pairs[3], 1)
    assert not np.array_equal(pairs[0], pairs[2])
    assert subset_weights(0.3, 10, 0, 3).sum() == 3
    assert subset_weights(None, 4, 0, 0).tolist() == [1, 1, 1, 1]
    assert subset_weights(lambda run: np.full(4, run), 4, 2, 0).tolist() == [2, 2, 2, 2]


def test_each_run_has_keys_of_its_own():
    keys = [key for at in ((0, 0), (0, 1), (1, 0)) for key in run_keys(*at)]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == 9


def test_a_bank_returns_the_runs_that_were_put(tmp_path):
    """Guesses are stored behind the parts of a run, and returned apart from them."""
    shapes = {"parts": (2, 2, 4), "guesses": (3, 2, 4), "metrics": (2,), "weights": (4,)}
    put = {}
    for path in (tmp_path / "runs", tmp_path / "runs"):
        bank = RunBank(path, {"format": 0})
        for run, each in put.items():
            (found,) = (one for one in bank.results(9) if one.run == run)
            for name in shapes:
                np.testing.assert_array_equal(getattr(found, name), getattr(each, name))
        for run in (5, 2) if not put else ():
            values = {name: np.random.default_rng(run).random(s) for name, s in shapes.items()}
            put[run] = RunScores(run, **values, seconds=1.0)
            bank.put(put[run])
        assert [one.run for one in bank.results(9)] == [2, 5]
        assert [one.run for one in bank.results(5)] == [2]
        bank.close()


def test_batches_have_examples_of_the_subset_and_all_others_beside_them():
    weights = np.array([1.0] * 6 + [0] * 5)
    order = Epochs(2, 3)(jax.random.key(0), weights)
    assert order.shape == (9, 4)
    for epoch in np.split(order, 3):
        assert sorted(epoch[:, :2].ravel()) == list(range(6))
        assert sorted(epoch[:, 2:].ravel()) == [-1, 6, 7, 8, 9, 10]
    again = Epochs(2, 3)(jax.random.key(1), weights)
    assert not np.array_equal(order, again)


def test_both_halves_of_an_odd_number_have_batches_of_one_shape():
    """Otherwise all that depends on the shape is compiled twice."""
    for count, size in ((13, 3), (145, 29), (9, 4)):
        weights = [subset_weights(0.5, count, run, 0) for run in (0, 1)]
        assert {int(each.sum()) for each in weights} == {count // 2, count // 2 + 1}
        orders = [Epochs(size, 2)(jax.random.key(0), each) for each in weights]
        assert orders[0].shape == orders[1].shape
        for order, own in zip(orders, weights, strict=True):
            absent = set(np.flatnonzero(own == 0).tolist())
            found = [row for row in order.ravel().tolist() if row in absent]
            assert sorted(found) == sorted([*absent, *absent])  # once in each epoch


def test_the_mean_and_its_standard_error_are_those_of_single_runs():
    several = scored(runs=4, average="mean")
    ids, names = several.ids, several.queries
    assert several.values.shape == (2, 12)
    assert several.about["runs"] == 4
    assert (ids.tolist(), names.tolist()) == (list(range(12)), [0, 1])
    np.testing.assert_allclose(several.members.mean(0), several.values)
    assert (several.standard_errors > 0).all()
    one = scored(runs=1, average="mean", ids=list("abcdefghijkl"), query_ids=["p", "q"])
    np.testing.assert_allclose(one.values, several.members[0], rtol=1e-6)
    assert one["p"][0][0] == "a"
    assert np.isnan(one.standard_errors).all()


def test_a_second_call_resumes_and_another_program_is_refused(tmp_path):
    path = tmp_path / "runs"
    begun = []

    def init(key):
        begun.append(key)
        return programs.init(key)

    own = {"path": path, "init": init, "average": "mean"}
    first = scored(runs=2, **own)
    count = len(begun)
    more = scored(runs=4, **own)
    assert len(begun) - count < 2 * count  # two runs of four, and the checks of both calls
    np.testing.assert_array_equal(more.members[:2], first.members[:2])
    np.testing.assert_array_equal(more.values, scored(runs=4, average="mean").values)
    done = len(begun)
    assert scored(runs=4, **own).about["runs"] == 4
    assert len(begun) - done == count - 2  # no run
    for changed, name in (
        ({"optimizer": optax.sgd(0.2)}, "program"),
        ({"data": (X + 1, Y)}, "data"),
        ({"epochs": 2}, "batches"),
        ({"metric": lambda p, b: -programs.loss(p, b)}, "metric"),
        ({"seed": 1}, "seed"),
    ):
        with pytest.raises(ArgumentError, match=f"another program: .*{name}.*Hint: give another"):
            scored(runs=2, path=path, **changed)


def scaled(factor):
    factor = np.asarray([factor, 1], np.float32)
    return jax.jit(lambda p, b: programs.loss(p, (b[0] * factor, b[1])))


def halves(run):
    return subset_weights(0.5, 12, run, 5)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"loss": scaled(1)}, {"loss": scaled(2)}, "program differ"),
        ({"metric": scaled(1)}, {"metric": scaled(2)}, "metric differ"),
        (
            {"subset": halves},
            {"subset": lambda run: halves(0) if run == 0 else np.ones(12)},
            "`subset` has other weights for run 1",
        ),
    ],
    ids=["constant of a jitted loss", "constant of a jitted metric", "later subset"],
)
def test_a_store_of_what_only_looks_the_same_is_refused(tmp_path, first, second, message):
    own = {"runs": 2, "path": tmp_path / "runs", "metric": programs.loss}
    scored(**{**own, **first})
    scored(**{**own, **first})
    with pytest.raises(ArgumentError, match=message):
        scored(**{**own, **second})


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_runs_of_different_lengths_are_averaged(tmp_path, stored):
    """They have different numbers of parts; so have runs with another budget."""

    def batches(key):
        steps = 2 + 30 * int(jax.random.uniform(key) < 0.3)
        return np.resize(np.arange(12), (steps, 3))

    own = {"batches": batches, "batch_size": None, "epochs": None, "average": "mean"}
    own |= {"path": tmp_path / "runs"} if stored else {}
    several = scored(runs=4, **own)
    assert {len(batches(run_keys(0, run)[1])) for run in range(4)} == {2, 32}
    left_out = ("batch_size", "epochs", "check", "progress")
    given = {name: value for name, value in OPTIONS.items() if name not in left_out}
    runner = runner_of(**given, batches=batches)
    for run in range(4):
        np.testing.assert_allclose(runner.run(run).values, several.members[run], rtol=1e-6)


def test_runs_with_another_budget_are_added(tmp_path):
    own = {"epochs": 15, "path": tmp_path / "runs"}
    scored(runs=2, memory="sqrt", **own)
    assert np.isfinite(scored(runs=4, memory="log", **own).values).all()
    found = scored(runs=4, average="mean", **own)
    expected = scored(runs=4, average="mean", epochs=15)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_an_influence_function_that_is_not_finite_is_no_guess(tmp_path, stored, monkeypatch):
    compute, calls = EndInfluence._scores, []

    def sometimes(self, *args):
        return compute(self, *args) * (jnp.nan if len(calls) == 2 else 1)

    def scores(self, last, slopes):
        calls.append(last)
        self._compiled = jax.jit(lambda *args: sometimes(self, *args))
        return scores_of(self, last, slopes)

    scores_of = EndInfluence.scores
    monkeypatch.setattr(EndInfluence, "scores", scores)
    found = scored(runs=4, **({"path": tmp_path / "runs"} if stored else {}))
    assert np.isfinite(found.values).all()
    assert len(calls) == 4


def test_a_share_of_any_type_is_a_share():
    expected = scored(runs=2)
    np.testing.assert_array_equal(scored(runs=2, subset=np.float32(0.5)).values, expected.values)


def test_stopping_by_error_and_by_time():
    assert scored(runs=20, error=1e9).about["runs"] == 6
    assert scored(runs=20, seconds=1e-9).about["runs"] == 1
    assert scored(runs=7, error=1e-9).about["runs"] == 7


@pytest.mark.thorough
def test_runs_on_several_devices():
    together = scored(runs=4, devices=jax.devices()[:2])
    np.testing.assert_allclose(together.values, scored(runs=4).values, rtol=1e-5, atol=1e-7)


# -- honesty --------------------------------------------------------------------------------------


def stepped(**options):
    """A Python loop around a jitted step, as users have it, and its last state."""
    optimizer = optax.adam(0.1)

    def init(key):
        params = programs.init(key)
        return params, optimizer.init(params)

    @jax.jit
    def step(state, batch, weights):
        params, memory = state
        grads = jax.grad(lambda p: programs.weighted(programs.loss(p, batch), weights))(params)
        updates, memory = optimizer.update(grads, memory, params)
        return optax.apply_updates(params, updates), memory

    order = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    state = init(run_keys(0, 0)[0])
    for rows in order:
        state = step(state, (X[rows], Y[rows]), jnp.ones(3))
    return state, {
        "step": step,
        "init": init,
        "metric": lambda state, batch: programs.loss(state[0], batch),
        "batches": order,
        "subset": None,
        "runs": 1,
        **dict.fromkeys(("loss", "optimizer", "batch_size", "epochs")),
        **options,
    }


def test_the_recorded_final_state_is_reproduced_bit_for_bit():
    last, options = stepped(loop="python")
    assert np.isfinite(scored(final_state=last, **options).values).all()
    other = jax.tree.map(lambda a: a * (1 + 1e-6) if a.dtype == np.float32 else a, last)
    with pytest.raises(ReplayError, match=r"does not end in `final_state`: \[0\]\['a'\] differs"):
        scored(final_state=other, **options)


def test_a_step_that_is_not_deterministic_is_an_error():
    random = np.random.default_rng(0)
    _, options = stepped(loop="python")
    step = options["step"]

    def noisy(state, batch, weights):
        batch = (
            batch[0] + random.normal() if not isinstance(weights, jax.core.Tracer) else batch[0],
            batch[1],
        )
        return step(state, batch, weights)

    message = r"Steps \d+ to \d+ gave another result.*\['a'\] differs by up to.*Hint: a step may"
    with pytest.raises(ReplayError, match=message):
        scored(**{**options, "step": noisy})


def test_a_rough_run_is_told_in_words():
    smooth = scored(runs=1, check=True)
    assert smooth.about["roughness"] < 0.05
    assert smooth.about["trust"].startswith("Derivatives of one run predict")

    def ragged(params, batch):
        return programs.loss(params, batch) + 0.3 * jnp.sin(3e4 * params["b"].sum())

    with pytest.warns(RoughTrainingWarning, match=r"Do not trust .* single run.*average over runs"):
        rough = scored(runs=1, check=True, metric=ragged)
    assert rough.about["roughness"] > 0.1


def rounded_away(grads, params):
    """Parameters in half precision, stored as float32: small steps do not change them."""
    moved = jax.tree.map(lambda p, g: (p - 1e-6 * g).astype(jnp.bfloat16), params, grads)
    return jax.tree.map(lambda p: p.astype(jnp.float32), moved)


def half_hidden_step(state, batch, weights):
    """The momentum is stored in integers, through which no derivative passes."""
    slopes = jax.grad(lambda p: programs.weighted(programs.loss(p, batch), weights))(state["p"])
    m = jax.tree.map(lambda m, g: 0.95 * m.astype(jnp.float32) / 999 + g, state["m"], slopes)
    params = jax.tree.map(lambda p, m: p - 3e-4 * m, state["p"], m)
    return {"p": params, "m": jax.tree.map(lambda m: jnp.round(m * 999).astype(jnp.int16), m)}


def half_hidden(key):
    params = programs.init(key)
    return {"p": params, "m": jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.int16), params)}


HALF_HIDDEN = {
    "step": half_hidden_step,
    "init": half_hidden,
    "metric": lambda state, batch: programs.loss(state["p"], batch),
    **dict.fromkeys(("loss", "optimizer")),
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": rounded_away, "subset": None}, r"Training is rough.*cosine 0\.00"),
        ({**HALF_HIDDEN, "subset": None, "epochs": 15}, r"times the predicted one. Do not trust"),
    ],
    ids=["rounded", "integer momentum"],
)
def test_a_state_that_hides_what_examples_change_is_told(options, message):
    with pytest.warns(RoughTrainingWarning, match=message):
        scored(runs=1, check=True, **options)


def test_a_state_without_real_numbers_is_refused():
    def init(key):
        return jax.tree.map(lambda a: a.astype(jnp.int32), programs.init(key))

    with pytest.raises(ArgumentError, match=r"must contain arrays of real numbers.*int32"):
        scored(init=init)


def test_an_optimizer_that_uses_only_signs_is_refused():
    def signs(grads, params):
        return jax.tree.map(lambda p, g: p - 0.1 * jnp.sign(g), params, grads)

    with pytest.raises(ArgumentError, match=r"exactly 0.*Lion"):
        scored(runs=1, optimizer=signs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_state_is_refused(dtype):
    def init(key):
        return jax.tree.map(lambda a: a.astype(dtype), programs.init(key))

    with pytest.raises(ArgumentError, match=rf"params\['a'\] has the dtype {dtype}.*Hint: keep"):
        scored(init=init)
    with pytest.raises(ArgumentError, match=r"optimizer state.*mu.* has the dtype bfloat16"):
        scored(optimizer=optax.adam(0.1, mu_dtype="bfloat16"))


def nan_loss(params, batch):
    return jnp.sqrt(programs.loss(params, batch) * 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": None}, "either `loss` and `optimizer`, or `step`; got neither"),
        ({"step": lambda s, b, w: s}, "`step`; got both"),
        ({"optimizer": None}, r"`loss` needs an `optimizer`.*Hint: optimizer=optax.adam"),
        ({"optimizer": 3}, "`optimizer` must be an optax optimizer"),
        ({"optimizer": optax.polyak_sgd()}, r"needs more than gradients: .*value.*Hint: .*`step`"),
        ({"epochs": None}, "`batch_size` and `epochs`, or by `batches`"),
        ({"batch_size": 13}, "`batch_size` is 13, but there are only 12 examples"),
        ({"loss": programs.dropped}, "`loss` takes a key.*Hint: metric="),
        ({"loss": lambda p, b: programs.loss(p, b).mean()}, "one number for each example"),
        ({"metric": lambda p, b: programs.loss(p, b).mean()}, "one number for each query"),
        ({"queries": None, "metric": lambda p: p["a"]}, "must return a vector"),
        ({"queries": None}, "`metric` is missing"),
        ({"data": (X, Y[:3])}, "`data` must have the same number of rows"),
        ({"ids": [1, 1]}, "`ids` must be 12 different ids"),
        ({"batch_size": None, "epochs": None, "batches": [[0, 12]]}, "indices below 12"),
        ({"subset": np.ones((1, 3))}, "12 non-negative weights"),
        ({"subset": np.ones((1, 12)), "runs": 2}, r"array of weights \[runs, n\].*for run 1"),
        ({"runs": 0}, "`runs` must be a positive integer"),
        ({"memory": "lots"}, "`memory` must be a number of bytes"),
        ({"metric": nan_loss}, r"not finite.*query 0"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        scored(**{"runs": 1, **options})


@pytest.mark.parametrize("how", [jnp.ones_like, lambda w: (w > 0) * 1.0], ids=["none", "mask"])
def test_a_step_that_ignores_the_weights(how):
    _, options = stepped()

    def ignoring(state, batch, weights):
        return options["step"](state, batch, how(weights))

    with pytest.raises(ArgumentError, match=r"exactly 0: no metric depends .*Hint: `step` must"):
        scored(**{**options, "step": ignoring})


def test_a_step_that_changes_the_structure():
    _, options = stepped()
    with pytest.raises(ArgumentError, match="changed the structure of the state"):
        scored(**{**options, "step": lambda state, batch, weights: state[0]})


@pytest.mark.parametrize("loop", ["scan", "python"])
def test_a_step_that_changes_a_dtype_or_a_shape(loop):
    _, options = stepped()

    def begin(key):
        return {"own": options["init"](key), "seen": jnp.zeros(3)}

    def step(state, batch, weights):
        own = options["step"](state["own"], batch, weights)
        return {"own": own, "seen": jnp.zeros(3, int)}

    with pytest.raises(
        ArgumentError, match=r"state\['seen'\] from float32\[3\] to int32\[3\]. Hint"
    ):
        scored(**{**options, "init": begin, "step": step, "loop": loop})


def test_the_function_is_listed():
    assert "through_training" in influence.__all__
    with pytest.raises(AttributeError, match="no attribute 'thru'"):
        influence.thru  # noqa: B018
