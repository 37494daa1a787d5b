"""States as programs have them: Python counters, donated buffers; and programs that change."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

from sawlog.errors import ArgumentError, ReplayError
from sawlog.influence import through_training
from tests.jax.training import programs
from tests.jax.training.programs import ORDER, WEIGHTS, Case
from tests.jax.training.test_derivatives import QUIET, differences, scored


def gradients(params, batch, weights, key=None):
    if key is not None:
        return jax.grad(lambda p: programs.weighted(programs.dropped(p, batch, key), weights))(
            params
        )
    return jax.grad(lambda p: programs.weighted(programs.loss(p, batch), weights))(params)


def descended(params, rate, grads):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def counted_step(state, batch, weights):
    rate = 0.2 / (1 + state["count"])
    params = descended(state["params"], rate, gradients(state["params"], batch, weights))
    return {"params": params, "count": state["count"] + 1}


def decayed_step(state, batch, weights):
    params = descended(state["params"], state["rate"], gradients(state["params"], batch, weights))
    return {"params": params, "rate": state["rate"] / 2}


OPTIMIZER = optax.adam(0.05)


def train_state(key):
    return TrainState.create(apply_fn=None, params=programs.init(key), tx=OPTIMIZER)


def train_state_step(state, batch, weights):
    key = jax.random.fold_in(jax.random.key(3), state.step)
    return state.apply_gradients(grads=gradients(state.params, batch, weights, key))


def of_params(state, batch):
    return programs.loss(state["params"], batch)


def of_train_state(state, batch):
    return programs.loss(state.params, batch)


def case(step, init, metric):
    return Case({"step": step, "init": init, "metric": metric}, metric)


CASES = {
    "counter": case(
        counted_step, lambda key: {"params": programs.init(key), "count": 0}, of_params
    ),
    "rate": case(decayed_step, lambda key: {"params": programs.init(key), "rate": 0.2}, of_params),
    "TrainState of flax": case(train_state_step, train_state, of_train_state),
}


def as_arrays(case):
    """The same program with arrays in place of the Python numbers of its state."""
    init = case.options["init"]
    given = {**case.options, "init": lambda key: jax.tree.map(jnp.asarray, init(key))}
    return Case(given, case.metric)


@pytest.mark.parametrize(
    ("name", "loop"), [*((name, "scan") for name in CASES), ("counter", "python")]
)
def test_python_numbers_that_steps_change(name, loop):
    """They are numbers of every step, as in a Python loop, not those of the first one."""
    with jax.enable_x64(True):
        expected = differences(as_arrays(CASES[name]))
        found = scored(CASES[name], loop=loop).values
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_python_number_of_an_optimizer():
    def update(grads, state, params):
        return jax.tree.map(lambda g: -0.3 * g / (1 + state["t"]), grads), {"t": state["t"] + 1}

    given = {"init": programs.init, "loss": programs.loss, "metric": programs.loss}
    own = scored(Case({**given, "optimizer": (lambda params: {"t": 0}, update)}))
    schedule = optax.sgd(lambda t: 0.3 / (1 + t))
    np.testing.assert_allclose(
        own.values, scored(Case({**given, "optimizer": schedule})).values, rtol=1e-5, atol=1e-7
    )


def test_numbers_and_texts_that_cannot_be_followed():
    def begin(key):
        return {"params": programs.init(key), "rate": float(jax.random.uniform(key))}

    def step(state, batch, weights):
        grads = gradients(state["params"], batch, weights)
        return {**state, "params": descended(state["params"], state["rate"], grads)}

    options = {"runs": 2, "subset": None}
    with pytest.raises(ArgumentError, match=r"state\['rate'\] is a Python number that is not the"):
        scored(case(step, begin, of_params), **options)

    def renamed(state, batch, weights):
        return {**step(state, batch, weights), "rate": "slow"}

    with pytest.raises(ArgumentError, match=r"changed state\['rate'\] from 'fast' to 'slow'"):
        scored(
            case(
                lambda s, b, w: renamed({**s, "rate": 0.1}, b, w),
                lambda key: {"params": programs.init(key), "rate": "fast"},
                of_params,
            )
        )


@pytest.mark.parametrize("memory", ["auto", "log"])
def test_a_jitted_step_that_donates_its_state_in_a_python_loop(memory):
    plain, order = programs.CASES["accumulation in a step"], np.concatenate([ORDER] * 3)
    step = jax.jit(programs.accumulated_step, donate_argnums=0)
    found = scored(plain, order, step=step, loop="python", memory=memory)
    np.testing.assert_allclose(found.values, scored(plain, order).values, rtol=1e-5, atol=1e-7)


# -- programs that change whenever they are traced ------------------------------------------------


def test_random_numbers_that_are_drawn_while_a_program_is_traced():
    """They are constants of one compiled program: its derivative would have others."""
    random, count = np.random.default_rng(0), []

    def noisy_step(state, batch, weights):
        batch = (batch[0] + random.normal(), batch[1])
        return descended(state, 0.1, gradients(state, batch, weights))

    def counting_step(state, batch, weights):
        count.append(0)
        return descended(state, 0.5 / len(count), gradients(state, batch, weights))

    def noisy_loss(params, batch):
        return programs.loss(params, (batch[0] + random.normal(size=batch[0].shape), batch[1]))

    def noisy_metric(params, batch):
        return programs.loss(params, batch) + random.normal() * params["b"].sum()

    own = {"init": programs.init, "metric": programs.loss}
    for step in (noisy_step, counting_step):
        with pytest.raises(ReplayError, match=r"A step is another program each time.*numpy.random"):
            scored(Case({**own, "step": step}))
    own |= {"loss": programs.loss, "optimizer": optax.sgd(0.1)}
    with pytest.raises(ReplayError, match="A step is another program"):
        scored(Case({**own, "loss": noisy_loss}))
    with pytest.raises(ReplayError, match="`metric` is another program"):
        scored(Case({**own, "metric": noisy_metric}))


def test_functions_that_are_made_anew_are_the_same_program():
    """What differs is only their address, or a constant that is computed again."""

    def loss(params, batch):
        inner = jax.custom_jvp(lambda x: x * jnp.asarray(np.ones(3)))
        inner.defjvp(lambda x, t: (inner(*x), 2 * t[0]))
        return jax.jit(lambda p: programs.loss({**p, "b": inner(p["b"])}, batch))(params)

    found = scored(Case({"init": programs.init, "loss": loss, "optimizer": optax.sgd(0.1)}))
    assert np.isfinite(found.values).all()


@pytest.mark.parametrize("kind", [int, bool, complex])
def test_a_metric_without_derivatives(kind):
    x, y = programs.data()
    with pytest.raises(ArgumentError, match=r"real numbers that have derivatives; got .*Hint: a l"):
        through_training(
            (x, y),
            (x, y),
            init=programs.init,
            loss=programs.loss,
            optimizer=optax.sgd(0.1),
            metric=lambda params, batch: (programs.outputs(params, batch[0]) > 0).astype(kind),
            batches=ORDER,
            subset=WEIGHTS[None],
            **QUIET,
        )
