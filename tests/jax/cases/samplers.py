"""Programs of samplers: blackjax and numpyro.

How often a sampler evaluates its log-density is up to the sampler. The answers count with JAX's own
callbacks in the same program without logs.
"""

from __future__ import annotations

from functools import cache

import blackjax
import jax
import numpy as np
import numpyro
from jax import lax
from jax import numpy as jnp
from numpyro import distributions
from numpyro.infer import MCMC, NUTS

import sawlog

from .base import Program, case, f32, many

START, OBSERVED = f32(1.0, 0.5), f32(1.0, 2.0)


def recorded(program, *args):
    """The output of `program(see, *args)`, and all values that it called `see` with."""
    seen: list = []

    def see(value):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), value, ordered=True)

    out = jax.jit(lambda *args: program(see, *args))(*args)
    jax.effects_barrier()
    return jax.tree.map(np.asarray, out), seen


def nuts_of_blackjax(see, log_step, start):
    """Window adaptation, then two steps of NUTS."""

    def log_density(x):
        see(x)
        return -0.5 * jnp.sum(x**2)

    warm_up, sample = jax.random.split(jax.random.key(0))
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = adaptation.run(warm_up, start, num_steps=3)
    kernel = blackjax.nuts(log_density, **parameters)

    def step(state, key):
        state, info = kernel.step(key, state)
        log_step({"position": state.position, "leapfrogs": info.num_integration_steps})
        return state, (state.position, info.num_integration_steps)

    return lax.scan(step, state, jax.random.split(sample, 2))[1]


@case("blackjax", "while", "scan", "grad", args=(START,), ways=("tap",), rtol=1e-4)
def blackjax_nuts() -> Program:
    """Logs in the log-density and in the loop, through window adaptation and sampling."""

    def fun(start):
        return nuts_of_blackjax(lambda x: sawlog.log("x", x), sawlog.log, start)

    @cache
    def once_for_all():
        return recorded(lambda see, x: nuts_of_blackjax(see, lambda logs: None, x), START)

    def answer(start):
        assert start is START
        (positions, leapfrogs), seen = once_for_all()
        logs = {"x": seen, "position": list(positions), "leapfrogs": list(leapfrogs)}
        return (positions, leapfrogs), {name: many(values) for name, values in logs.items()}

    return fun, answer


def nuts_of_numpyro(see, observed):
    """The mean of a normal distribution, by numpyro."""

    def model(observed):
        mean = numpyro.sample("mean", distributions.Normal(0, 1))
        see(mean)
        numpyro.sample("observed", distributions.Normal(mean, 1), obs=observed)

    mcmc = MCMC(NUTS(model), num_warmup=2, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), observed)
    return mcmc.get_samples()["mean"]


@case("numpyro", "while", "grad", args=(OBSERVED,), ways=("tap",), rtol=1e-4)
def numpyro_nuts() -> Program:
    """A log in a model, in all of `MCMC.run`."""

    def fun(observed):
        return nuts_of_numpyro(lambda x: sawlog.log("mean", x), observed)

    @cache
    def once_for_all():
        return recorded(nuts_of_numpyro, OBSERVED)

    def answer(observed):
        assert observed is OBSERVED
        out, seen = once_for_all()
        return out, {"mean": many(seen)}

    return fun, answer
