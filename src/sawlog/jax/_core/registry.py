"""The table of rules: how each higher-order primitive is rebuilt around its logs.

Every rule has the same signature::

    rule: Interpreter, JaxprEqn, values -> outputs, streams

``values`` are the operands of the equation and ``outputs`` its outputs, as lists. ``streams`` are
the logs inside, a tuple of :class:`~sawlog.jax._core.stream.Stream` in program order; it is empty
for handlers that collect nothing, such as those of ``tap`` and ``strip``. A rule uses two methods
of the interpreter: ``run(jaxpr, consts, args)`` evaluates an inner program in place, and
``rewrite(jaxpr)`` returns it with its logs as further outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sawlog.errors import UnsupportedLoopError, UnsupportedPrimitiveError
from sawlog.jax import _compat

if TYPE_CHECKING:
    from sawlog.jax._core.interpreter import Interpreter
    from sawlog.jax._core.stream import Streams

Rule = Callable[["Interpreter", Any, Sequence[Any]], tuple[list[Any], "Streams"]]

_rules: dict[Any, Rule] = {}


def register_rule(*primitives: Any) -> Callable[[Rule], Rule]:
    """Register how logs inside a primitive of your own are handled.

    A primitive that only calls the jaxpr in its parameter ``call_jaxpr``:

    >>> import sawlog
    >>> from jax.extend.core import Primitive
    >>> my_call_p = Primitive("my_call")
    >>> @sawlog.register_rule(my_call_p)
    ... def my_call(interpreter, eqn, values):
    ...     inner = eqn.params["call_jaxpr"]
    ...     return interpreter.run(inner.jaxpr, inner.consts, values)

    To keep the primitive, bind it with more operands in front and more outputs at the end::

        new = interpreter.rewrite(eqn.params["call_jaxpr"])
        outs = eqn.primitive.bind(*interpreter.leading(new), *values, call_jaxpr=new.closed)
        return interpreter.split(new, outs)
    """

    def register(rule: Rule) -> Rule:
        for primitive in primitives:
            _rules[primitive] = rule
        return rule

    return register


def has_rule(primitive: Any) -> bool:
    """Return whether a primitive has a rule."""
    return primitive in _rules


def rule_for(eqn: Any, sites: Sequence[str]) -> Rule:
    """Return the rule of an equation that has logs inside.

    Raises:
        UnsupportedPrimitiveError: its primitive has no rule.
    """
    rule = _rules.get(eqn.primitive)
    if rule is None:
        raise unsupported(eqn.primitive, f" used at {_compat.source_line(eqn)}", sites)
    return rule


def unsupported(primitive: Any, where: str, sites: Sequence[str]) -> UnsupportedPrimitiveError:
    """Return the error for logs inside a primitive without a rule."""
    name = primitive.name
    return UnsupportedPrimitiveError(
        f"There is a log inside the primitive '{name}'{where}, and sawlog has no rule for "
        f"'{name}'. The log is at {', '.join(sites)}. Hint: move the log out of the function "
        f"given to '{name}', remove it there with sawlog.strip(...), or add a rule with "
        "sawlog.register_rule."
    )


def raise_unknown_length(loop: str, sites: Sequence[str]) -> None:
    """Raise the error for a log in a loop of unknown length.

    Raises:
        UnsupportedLoopError: always.
    """
    raise UnsupportedLoopError(
        f"There is a log inside the loop at {loop}, and how often that loop runs is not known when "
        "the program is compiled, so spool cannot allocate space for all entries. The log is at "
        f"{', '.join(dict.fromkeys(sites))}. Hint: limit how many to keep, as in "
        'spool(f, capacity=1000, keep="last"), or reduce them, as in spool(f, reduce="mean"); '
        "sawlog.tap streams them, and argnames= leaves them out."
    )
