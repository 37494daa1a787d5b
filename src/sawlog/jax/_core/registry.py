"""The table of rules: how each higher-order primitive is rebuilt around its logs.

A rule has one signature, ``rule(walk, eqn, values) -> (outputs, streams)``. ``walk`` is the
interpreter: ``walk.rewrite(jaxpr)`` gives an inner program with its logs as further outputs,
``walk.run(jaxpr, consts, args)`` evaluates one in place. ``streams`` are the logs that came out, in
program order; for ``tap`` and ``strip`` there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sawlog.errors import UnsupportedPrimitiveError
from sawlog.jax import _compat

if TYPE_CHECKING:
    from sawlog.jax._core.interpreter import Interpreter
    from sawlog.jax._core.stream import Streams

Rule = Callable[["Interpreter", Any, Sequence[Any]], tuple[list[Any], "Streams"]]

_rules: dict[Any, Rule] = {}


def register_rule(*primitives: Any) -> Callable[[Rule], Rule]:
    """Say how logs inside a primitive of your own are handled.

    A primitive that simply calls a jaxpr it holds as ``call_jaxpr``:

    >>> import sawlog
    >>> from jax.extend.core import Primitive
    >>> my_call_p = Primitive("my_call")
    >>> @sawlog.register_rule(my_call_p)
    ... def my_call(walk, eqn, values):
    ...     inner = eqn.params["call_jaxpr"]
    ...     return walk.run(inner.jaxpr, inner.consts, values)

    One that stays what it is takes further operands in front and further outputs behind::

        new = walk.rewrite(eqn.params["call_jaxpr"])
        outs = eqn.primitive.bind(*walk.leading(new), *values, call_jaxpr=new.closed)
        return walk.split(new, outs)
    """

    def register(rule: Rule) -> Rule:
        for primitive in primitives:
            _rules[primitive] = rule
        return rule

    return register


def has_rule(primitive: Any) -> bool:
    """Whether it is known how logs inside a primitive are handled."""
    return primitive in _rules


def rule_for(eqn: Any, sites: Sequence[str]) -> Rule:
    """The rule of an equation that has logs inside.

    Raises:
        UnsupportedPrimitiveError: there is none.
    """
    rule = _rules.get(eqn.primitive)
    if rule is None:
        raise unsupported(eqn.primitive, f" used at {_compat.source_line(eqn)}", sites)
    return rule


def unsupported(primitive: Any, where: str, sites: Sequence[str]) -> UnsupportedPrimitiveError:
    """What to raise for logs inside of a primitive without a rule."""
    name = primitive.name
    return UnsupportedPrimitiveError(
        f"There is a log inside the primitive '{name}'{where}, and sawlog has no rule for "
        f"'{name}'. The log stands at {', '.join(sites)}. Hint: move the log out of the function "
        f"given to '{name}', drop it there with sawlog.strip(...), or teach sawlog with "
        "sawlog.register_rule."
    )
