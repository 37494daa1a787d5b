"""What a user is told about runs that should not be trusted, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog import influence
from sawlog.errors import ArgumentError, ReplayError, RoughTrainingWarning
from sawlog.jax._training.run_data import run_keys
from tests.jax.training import programs
from tests.jax.training.small_runs import X, Y, scored


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
