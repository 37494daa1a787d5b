"""``watch``: log norms, dead units and NaN of a function without a log call in it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sawlog._validate import flag
from sawlog.errors import UnmatchedNameWarning
from sawlog.jax import _compat
from sawlog.jax._core.functions import check_callable, named_like
from sawlog.jax._core.primitive import cotangent_p, is_listening, watching
from sawlog.jax._core.program import Program
from sawlog.jax._core.select import check_prefix
from sawlog.jax._core.user_frames import caller, stack_level
from sawlog.jax._watch.interpreter import WatchInterpreter, WatchOptions
from sawlog.jax._watch.labels import DATA, Label
from sawlog.jax._watch.measures import emit, log_norm_of_cotangent, norm
from sawlog.jax._watch.parameters import check_marked, find_parameters, replace_parameters
from sawlog.jax._watch.plan import Planner, computes_with, differentiates


def watch(
    fun: Callable[..., Any],
    params: Any = None,
    *,
    activations: bool = True,
    gradients: bool = True,
    updates: bool = True,
    dead: bool = True,
    nonfinite: bool = True,
    prefix: str = "",
) -> Callable[..., Any]:
    """Return the same function, which logs what happens inside it.

    The function may be a model, a loss or a whole training step. Nothing in it changes. As with
    :func:`sawlog.log`, nothing is logged or computed on its own; :func:`sawlog.spool`,
    :func:`sawlog.tap` and the loggers around it collect these logs, all with the tag ``"watch"``:

    - ``activation/dense``: the L2 norm of the output of each layer,
    - ``cotangent/dense``: the norm of the gradient of that output,
    - ``gradient/dense/kernel``: the norm of the gradient of each parameter,
    - ``update/dense/kernel``: how far a training step moved each parameter,
    - ``dead/dense``: the share of units that a ReLU set to zero in the whole batch,
    - ``nonfinite/line``, ``nonfinite/source``: the first equation that made a NaN or an infinity;
      nothing if all values are finite. :func:`sawlog.jax.source_text` reads the source.

    Args:
        fun: the function. It may be jitted, and may differentiate a loss itself.
        params: the parameters, or any pytree with the same paths and shapes, to find them among the
            arguments; or a function of the arguments that returns them. The default is the first
            argument.
        activations, gradients, updates, dead, nonfinite: what to log.
        prefix: a prefix for every name.

    >>> import jax, jax.numpy as jnp, sawlog
    >>> def loss(params, x):
    ...     h = jax.nn.relu(x @ params["dense"]["kernel"] + params["dense"]["bias"])
    ...     return jnp.sum(h)
    >>> params = {"dense": {"kernel": jnp.array([[3.0, -1.0]]), "bias": jnp.array([1.0, 0.0])}}
    >>> gradient = jax.grad(sawlog.jax.watch(loss, params))
    >>> _, logs = sawlog.spool(gradient)(params, jnp.ones((1, 1)))
    >>> for name in sorted(logs):
    ...     print(name, logs[name])
    activation/dense 4.1231055
    cotangent/dense 1.0
    dead/dense 0.5
    gradient/dense/bias 1.0
    gradient/dense/kernel 1.0

    Raises:
        ArgumentError: an option has an invalid value, or the arguments contain no such parameters,
            or several of them.
    """
    check_callable(fun, "watch")
    check_prefix(prefix)
    chosen = {
        "activations": activations,
        "gradients": gradients,
        "updates": updates,
        "dead": dead,
        "nonfinite": nonfinite,
    }
    for name, value in chosen.items():
        flag(name, value)
    options = WatchOptions(**chosen, prefix=prefix)

    @functools.wraps(fun)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not is_listening():
            return fun(*args, **kwargs)
        return _Watch(fun, params, options, caller()).call(args, kwargs)

    return watched


class _Watch:
    """One call of a watched function while logs are collected."""

    def __init__(
        self, fun: Callable[..., Any], params: Any, options: WatchOptions, where: str
    ) -> None:
        self._fun, self._params, self._options, self._where = fun, params, options, where
        self._entries: dict[str, str] = {}
        self._arguments: list[str] = []

    def call(self, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """Trace the function with its parameters marked, and evaluate it with logs."""
        marked = named_like(self._marked, self._fun, 0)
        program = Program(marked, self._evaluate, scope=watching)
        return program(args, dict(kwargs))[0]

    def _marked(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with a ``log_cotangent`` on each parameter."""
        names = find_parameters(self._params, args, kwargs)
        for keys, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
            if _compat.is_tracer(leaf):
                self._arguments.append(names.get(id(leaf)) or jax.tree_util.keystr(keys))

        def mark(leaf: Any) -> Any:
            name = names.get(id(leaf))
            if name is None:
                return leaf
            key = f"{self._options.prefix}gradient/{name}"
            self._entries[key] = name
            return log_norm_of_cotangent(key, leaf, self._where)

        args, kwargs = replace_parameters(mark, args, kwargs)
        check_marked(names.values(), self._entries.values())
        return self._fun(*args, **kwargs)

    def _evaluate(self, closed: Any, values: list[Any], _: Any) -> tuple[list[Any], None]:
        jaxpr, inside = closed.jaxpr, differentiates(closed.jaxpr)
        self._warn_if_unused(jaxpr)
        planner = Planner(self._entries, inside)
        plan, labels = planner.program(jaxpr, [DATA] * len(jaxpr.invars))
        interpreter = WatchInterpreter(plan, self._options)
        names = self._arguments
        if len(names) != len(values):
            names = [str(i) for i in range(len(values))]
        interpreter.check_arguments(names, values)
        outs, _streams = interpreter.run(jaxpr, closed.consts, values)
        if self._options.updates and inside:
            self._log_updates(jaxpr, closed.consts, values, labels, outs)
        interpreter.finish(self._where)
        return outs, None

    def _warn_if_unused(self, jaxpr: Any) -> None:
        """Warn if no equation uses a parameter: there are no layers to log."""
        marked = {
            eqn.outvars[0]
            for eqn in jaxpr.eqns
            if eqn.primitive is cotangent_p and eqn.params["site"].keys[0] in self._entries
        }
        if not computes_with(jaxpr, marked):
            warnings.warn(
                f"The watched function {getattr(self._fun, '__name__', '')!r} computes nothing "
                "from its parameters, so no layer is logged. Hint: pass the parameters on to the "
                "model, rather than arrays that the function closes over; or say which argument "
                "they are: watch(f, lambda state, batch: state.params).",
                UnmatchedNameWarning,
                stacklevel=stack_level(),
            )

    def _log_updates(
        self, jaxpr: Any, consts: Any, values: list[Any], labels: list[Label], outs: list[Any]
    ) -> None:
        """Log how far each parameter moved, if the function returns all of them, updated."""
        inputs = dict(zip(jaxpr.constvars, consts, strict=True))
        inputs.update(zip(jaxpr.invars, values, strict=True))
        before = {
            self._entries[eqn.params["site"].keys[0]]: inputs.get(eqn.invars[0])
            for eqn in jaxpr.eqns
            if eqn.primitive is cotangent_p and eqn.params["site"].keys[0] in self._entries
        }
        after: dict[str, list[Any]] = {}
        for out, label in zip(outs, labels, strict=True):
            if label.updated:
                after.setdefault(label.updated, []).append(out)
        same = {label.leaves[0] for label in labels if label.exact}
        if not after or any(name not in after and name not in same for name in before):
            return
        for name, old in before.items():
            new = after.get(name, [old])
            if old is not None and len(new) == 1:
                moved = norm(new[0] - old) if name in after else norm(jnp.zeros(()))
                emit({f"{self._options.prefix}update/{name}": moved}, self._where)
