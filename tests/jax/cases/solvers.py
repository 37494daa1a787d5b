"""Programs of solvers: diffrax, lineax, optimistix, jaxopt, and optimizers of optax with state."""

from __future__ import annotations

import warnings

import diffrax
import jax
import lineax
import numpy as np
import optax
import optimistix
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import Program, case, f32, many, once
from .equinox import of_lanes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is no longer maintained, yet used
    import jaxopt

ONE_WAY = ("tap",)  # these take seconds to trace

# --- diffrax ----------------------------------------------------------------------------------


def decay(y0, t1, **options):
    """dy/dt = -y from 0 to t1 in steps of 1/4; the vector field logs where it is evaluated."""

    def field(t, y, args):
        sawlog.log("y", y)
        return -y

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Euler(),
        0.0,
        t1,
        0.25,
        y0,
        max_steps=4,
        throw=False,
        **options,
    )
    return solution.ys[-1]


def euler(y, steps):
    """The states at which Euler's method evaluates the field, and the last one."""
    seen = []
    for _ in range(steps):
        seen.append(np.float32(y))
        y = y - np.float32(0.25) * y
    return seen, np.float32(y)


@case("diffrax", "while", "vmap", "grad", args=(f32(1.0, 2.0), f32(0.5, 1.0)), ways=ONE_WAY)
def diffrax_checkpointed_lanes_grad() -> Program:
    """The default adjoint under vmap of grad: forwards once, each lane as long as it runs."""

    def fun(y0, t1):
        return jax.vmap(jax.grad(decay))(y0, t1)

    def answer(y0, t1):
        values, mask = of_lanes([euler(y, int(4 * t))[0] for y, t in zip(y0, t1, strict=True)])
        return np.float32(0.75) ** (4 * t1), {"y": many(values, mask=mask)}

    return fun, answer


@case("diffrax", "scan", "vmap", "grad", args=(f32(1.0, 2.0), f32(0.5, 1.0)), ways=("jit_spool",))
def diffrax_direct_lanes_grad() -> Program:
    """`DirectAdjoint`, a bounded loop, under vmap of grad."""

    def fun(y0, t1):
        return jax.vmap(jax.grad(lambda y, t: decay(y, t, adjoint=diffrax.DirectAdjoint())))(y0, t1)

    def answer(y0, t1):
        values, mask = of_lanes([euler(y, int(4 * t))[0] for y, t in zip(y0, t1, strict=True)])
        return np.float32(0.75) ** (4 * t1), {"y": many(values, mask=mask)}

    return fun, answer


@case("diffrax", "while", "grad", args=(f32(1.0), f32(1.0)), ways=ONE_WAY)
def diffrax_backsolve_grad() -> Program:
    """`BacksolveAdjoint` solves backwards in time: those evaluations are there as well."""

    def fun(y, t1):
        return jax.grad(lambda y: decay(y, t1, adjoint=diffrax.BacksolveAdjoint()))(y)

    def answer(y, t1):
        seen, y = euler(y, 4)
        gradient = np.float32(1)
        for _ in range(4):
            seen.append(y)
            y = y + np.float32(0.25) * y
            gradient = gradient - np.float32(0.25) * gradient
        return gradient, {"y": many(seen)}

    return fun, answer


@case("diffrax", "while", args=(f32(1.0), f32(1.0)), ways=ONE_WAY)
def diffrax_event() -> Program:
    """An event stops the solution; a log in its condition is there for every step."""

    def fun(y, t1):
        def below(t, y, args, **options):
            sawlog.log("event", y)
            return y < 0.6

        return decay(y, t1, event=diffrax.Event(below), saveat=diffrax.SaveAt(t1=True))

    def answer(y, t1):
        seen, y = euler(y, 2)
        return y, {"y": many(seen), "event": many([*seen, y])}

    return fun, answer


# --- lineax, optimistix, jaxopt ---------------------------------------------------------------

MATRIX, TARGET = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32), f32(1.0, 2.0)


@case("lineax", "grad", args=(MATRIX, TARGET), ways=("jit_spool", "grad"), rtol=1e-4)
def lineax_linear_solve() -> Program:
    """A linear solve between two logs, under grad."""

    def fun(matrix, target):
        def loss(target):
            sawlog.log("target", target)
            operator = lineax.MatrixLinearOperator(matrix)
            solution = lineax.linear_solve(operator, target).value
            sawlog.log("solution", solution)
            return solution.sum()

        return jax.grad(loss)(target)

    def answer(matrix, target):
        solution = np.linalg.solve(matrix, target)
        gradient = np.linalg.solve(matrix.T, np.ones(2, np.float32))
        return gradient, {"target": once(target), "solution": once(solution)}

    return fun, answer


def newton(a, tolerance=1e-5):
    """The values at which Newton's method evaluates y**2 - a, from 1 on."""
    y, seen = np.float32(1), []
    while True:
        seen.append(y)
        step = (y * y - a) / (2 * y)
        y = np.float32(y - step)
        if abs(step) < tolerance * (1 + abs(y)):
            return y, seen


@case("optimistix", "while", "vmap", args=(f32(2.0, 9.0),), ways=ONE_WAY, rtol=1e-4)
def optimistix_newton_lanes() -> Program:
    """`root_find` under vmap: each lane as long as it takes."""

    def fun(targets):
        def function(y, target):
            sawlog.log("y", y)
            return y**2 - target

        def solve(target):
            solver = optimistix.Newton(rtol=1e-5, atol=1e-5)
            return optimistix.root_find(function, solver, jnp.float32(1), target).value

        return jax.vmap(solve)(targets)

    def answer(targets):
        found = [newton(a) for a in targets]
        values, mask = of_lanes([seen for _, seen in found])
        return np.array([y for y, _ in found], np.float32), {"y": many(values, mask=mask)}

    return fun, answer


@case("optimistix", "while", "grad", args=(f32(0.5),), ways=ONE_WAY, rtol=1e-4)
def optimistix_fixed_point_grad() -> Program:
    """`fixed_point` under grad through its iterations: forwards once."""

    def fun(a):
        def function(y, a):
            sawlog.log("y", y)
            return a * y + 1

        def solve(a):
            return optimistix.fixed_point(
                function,
                optimistix.FixedPointIteration(rtol=0.1, atol=0.1),
                jnp.float32(0),
                a,
                adjoint=optimistix.RecursiveCheckpointAdjoint(),
                max_steps=8,
            ).value

        return jax.grad(solve)(a)

    def answer(a):
        y, slope, seen = np.float32(0), np.float32(0), []
        while True:
            seen.append(y)
            new = a * y + 1
            y, slope, step = new, y + a * slope, abs(new - y)
            if step < 0.1 + 0.1 * abs(y):
                return slope, {"y": many(seen)}

    return fun, answer


@case("optimistix", "while", args=(f32(1.0),), ways=ONE_WAY)
def optimistix_least_squares() -> Program:
    """`least_squares` by Gauss and Newton: solved in one step, which the second one finds."""

    def fun(a):
        def residual(y, a):
            sawlog.log("y", y)
            return y - a

        solver = optimistix.GaussNewton(rtol=1e-2, atol=1e-2)
        return optimistix.least_squares(residual, solver, jnp.float32(0), a).value

    def answer(a):
        return a, {"y": many([np.float32(0), a, a])}

    return fun, answer


@case("jaxopt", "while", args=(f32(1.0),), ways=ONE_WAY)
def jaxopt_gradient_descent() -> Program:
    """`GradientDescent.run`: a loop of unknown length."""

    def fun(target):
        def loss(w, target):
            sawlog.log("w", w)
            return (w - target) ** 2

        solver = jaxopt.GradientDescent(loss, maxiter=4, stepsize=0.25, acceleration=False)
        return solver.run(jnp.float32(0), target).params

    def answer(target):
        ws = [np.float32(0)]
        for _ in range(4):
            ws.append(ws[-1] - np.float32(0.5) * (ws[-1] - target))
        return ws[-1], {"w": many(ws[:-1])}

    return fun, answer


@case("jaxopt", "grad", args=(f32(1.0),), ways=("jit_spool", "tap"))
def jaxopt_unrolled_grad() -> Program:
    """`GradientDescent.run`, unrolled, under grad: once."""

    def fun(target):
        def loss(w, target):
            sawlog.log("w", w)
            return (w - target) ** 2

        def solve(target):
            solver = jaxopt.GradientDescent(
                loss,
                maxiter=4,
                stepsize=0.25,
                acceleration=False,
                implicit_diff=False,
                unroll=True,
            )
            return solver.run(jnp.float32(0), target).params

        return jax.grad(solve)(target)

    def answer(target):
        ws = [np.float32(0)]
        for _ in range(4):
            ws.append(ws[-1] - np.float32(0.5) * (ws[-1] - target))
        return np.float32(1 - 0.5**4), {"w": many(ws[:-1])}

    return fun, answer


# --- optax ------------------------------------------------------------------------------------


@case("optax", "while", "scan", args=(f32(1.0, 2.0),), ways=ONE_WAY, rtol=1e-4)
def optax_lbfgs() -> Program:
    """`value_and_grad_from_state`: what the line search evaluated is not evaluated again."""

    def fun(target):
        def loss(w):
            sawlog.log("w", w)
            return ((w - target) ** 2).sum()

        optimizer = optax.lbfgs(memory_size=2)
        value_and_grad = optax.value_and_grad_from_state(loss)

        def step(carry, _):
            w, state = carry
            value, grad = value_and_grad(w, state=state)
            sawlog.log("value", value)
            updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=loss)
            return (optax.apply_updates(w, updates), state), None

        w = jnp.zeros(2)
        return lax.scan(step, (w, optimizer.init(w)), length=2)[0][0]

    def answer(target):
        first = target / np.linalg.norm(target)
        values = [np.sum(target**2), np.sum((first - target) ** 2)]
        seen = [np.zeros(2, np.float32), first, target]
        return target, {"value": many(values), "w": many(seen)}

    return fun, answer


@case("optax", "scan", args=(f32(1.0, 3.0, 2.0, 4.0),), ways=("jit_spool", "tap"))
def optax_multi_steps() -> Program:
    """`MultiSteps`: an update every second step."""

    def fun(grads):
        optimizer = optax.MultiSteps(optax.sgd(0.5), 2)

        def step(carry, grad):
            w, state = carry
            updates, state = optimizer.update(grad, state, w)
            w = optax.apply_updates(w, updates)
            sawlog.log({"w": w, "update": updates})
            return (w, state), None

        return lax.scan(step, (jnp.float32(0), optimizer.init(jnp.float32(0))), grads)[0][0]

    def answer(grads):
        means = -np.float32(0.5) * grads.reshape(2, 2).mean(1)
        updates = np.stack([np.zeros(2, np.float32), means], 1).ravel()
        ws = np.cumsum(updates)
        return ws[-1], {"w": many(list(ws)), "update": many(list(updates))}

    return fun, answer


@case("optax", "scan", args=(f32(1.0, np.nan, 2.0),), ways=("jit_spool", "tap"))
def optax_apply_if_finite() -> Program:
    """`apply_if_finite` leaves out a bad step, and the log says so."""

    def fun(grads):
        optimizer = optax.apply_if_finite(optax.sgd(0.5), 5)

        def step(carry, grad):
            w, state = carry
            updates, state = optimizer.update(grad, state, w)
            w = optax.apply_updates(w, updates)
            sawlog.log({"w": w, "bad": state.notfinite_count})
            return (w, state), None

        return lax.scan(step, (jnp.float32(0), optimizer.init(jnp.float32(0))), grads)[0][0]

    def answer(grads):
        ws, bad = np.float32([-0.5, -0.5, -1.5]), np.int32([0, 1, 0])
        return ws[-1], {"w": many(list(ws)), "bad": many(list(bad))}

    return fun, answer
