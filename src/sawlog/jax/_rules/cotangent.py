"""``log_cotangent``: log the gradient that flows back through a value.

While logs are recorded, the value passes through an identity primitive, ``log_cotangent``. Its
forward-mode rule applies a second, linear identity to the tangents; the transposition of that one
logs the cotangent. Neither has an effect: where no gradient flows, nothing remains.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from sawlog.jax import _compat
from sawlog.jax._core import libraries
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._core.primitive import cotangent_p, is_listening, log_p, tangent_p
from sawlog.jax._core.site import Site


def log_cotangent(name: str, x: Any, /, **options: Any) -> Any:
    """Return ``x``, and log the gradient that flows back through it under ``name``.

    The gradient is logged in ``grad``, ``vjp`` or ``jacrev``, in the order of the backward pass.
    Where no gradient flows nothing is logged.

    Args:
        name: The name of the log.
        x: An array or a pytree. Leaves without a gradient, such as integers, are logged as None.
        options: Options of :func:`sawlog.log` for one value: ``reduction``, ``where``, ``tags`` and
            step axes.

    >>> import jax, sawlog
    >>> def f(x):
    ...     y = sawlog.log_cotangent("dy", x**2)
    ...     return 3.0 * y
    >>> gradient, logs = sawlog.spool(jax.grad(f))(2.0)
    >>> print(gradient, logs["dy"])
    12.0 3.0

    Raises:
        LogValueError: as for :func:`sawlog.log`.
    """
    site, operands = read_site((name, x), options, as_arrays=is_listening())
    if site is None or not is_listening() or libraries.only_probing():
        return x
    leaves, tree = jax.tree.flatten(x)
    flows = [_compat.has_tangent(leaf) for leaf in leaves]
    if not any(flows):
        return x
    count = len(leaves)
    kept = [i for i in range(count) if flows[i]]
    # Leaves without a gradient (integers) are None in the logged pytree.
    shown = jax.tree.unflatten(tree, [leaves[i] if flows[i] else None for i in range(count)])
    site = dataclasses.replace(site, trees=(jax.tree.structure(shown),))
    outs = cotangent_p.bind(*(leaves[i] for i in kept), *operands[count:], site=site)
    for i, out in zip(kept, outs, strict=True):
        leaves[i] = out
    return jax.tree.unflatten(tree, leaves)


def _count(site: Site) -> int:
    return site.trees[0].num_leaves


def _jvp(primals: Any, tangents: Any, *, site: Site) -> Any:
    count = _count(site)
    outs = cotangent_p.bind(*primals, site=site)
    own = tangents[:count]
    if all(map(_compat.is_zero, own)):
        return outs, list(own)
    own = [_compat.instantiate_zero(tangent) for tangent in own]
    return outs, tangent_p.bind(*own, *primals[count:], site=site)


def _jvp_of_tangent(primals: Any, tangents: Any, *, site: Site) -> Any:
    # Linear in the tangents. The gradient of a gradient is not logged.
    return tangent_p.bind(*primals, site=site), list(tangents[: _count(site)])


def _transpose(cotangents: Any, *operands: Any, site: Site) -> Any:
    count = _count(site)
    steps = operands[count:]
    if is_listening() and not all(map(_compat.is_zero, cotangents)):
        flowing = [_compat.on_device(_compat.instantiate_zero(each)) for each in cotangents]
        if site.measure is not None:
            flowing = [site.measure(cotangent, site.batch) for cotangent in flowing]
            site = dataclasses.replace(site, measure=None)
        log_p.bind(*flowing, *steps, site=site)
    return [*cotangents, *(None for _ in steps)]


def _batch(primitive: Any) -> Any:
    def rule(add_axis: Any, values: Any, dims: Any, *, site: Site) -> Any:
        if all(dim is None for dim in dims):
            return primitive.bind(*values, site=site), [None] * _count(site)
        values = [add_axis(value, dim) for value, dim in zip(values, dims, strict=True)]
        outs = primitive.bind(*values, site=dataclasses.replace(site, batch=site.batch + 1))
        return outs, [0] * len(outs)

    return rule


def _define(primitive: Any, jvp: Any) -> None:
    primitive.multiple_results = True
    primitive.def_impl(lambda *operands, site: list(operands[: _count(site)]))
    primitive.def_abstract_eval(lambda *avals, site: list(avals[: _count(site)]))
    _compat.define_lowering(primitive, lambda ctx, *args, site: list(args[: _count(site)]))
    _compat.define_jvp(primitive, jvp)
    _compat.define_batching_with_outputs(primitive, _batch(primitive))


_define(cotangent_p, _jvp)
_define(tangent_p, _jvp_of_tangent)
_compat.define_transpose(tangent_p, _transpose)
