"""``Pair``: the two factors of per-example gradients.

Canonical form
--------------

A pair represents one use of a matrix of parameters ``W`` with shape ``[rows, cols]``. The gradient
of example ``b`` is a sum of outer products over positions ``t``::

    gradient[b] = sum_t  outer(left[b, t], right[b, t])          # [rows, cols]

with ``left`` of shape ``[batch, positions, rows]`` and ``right`` of shape
``[batch, positions, cols]``. The layout is that of the parameter: ``left`` runs along its first
axis, ``right`` along its second one. Below, ``x`` is the input of the layer and ``g`` the gradient
of the loss of each example with respect to its output.

=================================  ==============================  ==============================
layer                              left                            right
=================================  ==============================  ==============================
Linear, ``x [batch, in]``,         ``g`` as ``[batch, 1, out]``    ``x`` as ``[batch, 1, in]``
weight ``[out, in]``
Linear, ``x [batch, tokens, in]``  ``g [batch, tokens, out]``      ``x [batch, tokens, in]``
Conv2d, weight                     ``g`` as                        patches of ``x`` as ``[batch,
``[out, in, h, w]`` as             ``[batch, h' * w', out]``       h' * w', in * h * w]``
``[out, in * h * w]``
Embedding, weight                  one-hot rows                    ``g [batch, tokens, features]``
``[words, features]``              ``OneHot(ids, words)``,
                                   ids ``[batch, tokens]``
scale of a norm, weight ``[n]``    gradient of the weight as       ones ``[batch, 1, 1]``
as ``[n, 1]``                      ``[batch, 1, n]``
=================================  ==============================  ==============================

- A bias is one more feature of the inputs, which is always 1: ``Dense(x, one=True)``. It becomes
  one more column of the weight.
- A weight that is stored as ``[in, out]``, such as that of ``transformers.Conv1D``, has ``x`` on
  the left and ``g`` on the right.
- With groups, as in a grouped convolution, ``W`` has the shape ``[groups, rows, cols]``, and the
  factors are ``[batch, positions, groups, rows]`` and ``[batch, positions, groups, cols]``.
- Layers that share ``W`` yield one pair each. Their gradients are added.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from array_api_compat import array_namespace, device

from sawlog.factored._factor import Dense, Factor, OneHot


@dataclasses.dataclass(frozen=True)
class Pair:
    """The factors of the gradients of one use of a matrix of parameters.

    The gradient of example ``b`` is the sum over positions ``t`` of
    ``outer(left[b, t], right[b, t])``.

    Args:
        left: The factor along the rows of the matrix, ``[batch, positions, rows]``.
        right: The factor along its columns, ``[batch, positions, cols]``.

    Examples, for a batch of 2. ``x`` are inputs, ``g`` are gradients of outputs:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)

    Linear from 3 to 4 features on ``[batch, features]``: one position, and the bias as a column.

    >>> x, g = rng.normal(size=(2, 3)), rng.normal(size=(2, 4))
    >>> pair = Pair(Dense(g[:, None]), Dense(x[:, None], one=True))
    >>> gradient(pair).shape, np.allclose(gradient(pair)[..., :3], g[:, :, None] * x[:, None, :])
    ((2, 4, 4), True)

    Linear on ``[batch, tokens, features]``: a position per token.

    >>> x, g = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 4))
    >>> gradient(Pair(Dense(g), Dense(x))).shape
    (2, 4, 3)

    Conv2d from 3 to 4 channels with a kernel of 2 x 2 on 5 x 5 pixels: a position per output pixel,
    and the pixels under the kernel as features.

    >>> x, g = rng.normal(size=(2, 3, 5, 5)), rng.normal(size=(2, 4, 4, 4))
    >>> patches = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))
    >>> patches = patches.transpose(0, 2, 3, 1, 4, 5).reshape(2, 16, 12)
    >>> pair = Pair(Dense(g.reshape(2, 4, 16).swapaxes(1, 2)), Dense(patches))
    >>> gradient(pair).reshape(2, 4, 3, 2, 2).shape
    (2, 4, 3, 2, 2)

    Embedding of 10 words with 4 features: rows of the table are added where they were looked up.

    >>> ids, g = rng.integers(0, 10, size=(2, 5)), rng.normal(size=(2, 5, 4))
    >>> gradient(Pair(OneHot(ids, 10), Dense(g))).shape
    (2, 10, 4)

    The scale of a norm over 4 features: the gradient itself, as a matrix with one column.

    >>> normalized, g = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 5, 4))
    >>> gradient(vector((normalized * g).sum(1))).shape
    (2, 4, 1)
    """

    left: Factor
    right: Factor

    @property
    def is_whole(self) -> bool:
        """Whether the positions are the rows of the matrix, as :func:`rows` has them."""
        left = self.left
        if not isinstance(left, OneHot) or left.weights is not None or left.positions != left.size:
            return False
        xp = array_namespace(left.ids)
        numbers = xp.arange(left.size, dtype=left.ids.dtype, device=device(left.ids))
        return bool(xp.all(left.ids == numbers))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix of parameters."""
        sides = (self.left.size, self.right.size)
        groups = self.left.groups or self.right.groups
        return sides if groups is None else (groups, *sides)

    @property
    def batch(self) -> int:
        """The number of examples."""
        factor = self.left
        return int((factor.ids if isinstance(factor, OneHot) else factor.array).shape[0])

    def projected(self, left: Any = None, right: Any = None) -> Pair:
        """Return the pair of the projected gradients, ``left.T @ gradient @ right``.

        A side without a matrix is unchanged.
        """
        return Pair(
            self.left if left is None else self.left.projected(left),
            self.right if right is None else self.right.projected(right),
        )

    def masked(self, mask: Any) -> Pair:
        """Drop the positions where ``mask``, ``[batch, positions]``, is false."""
        return Pair(self.left.masked(mask), self.right.masked(mask))

    def scaled(self, scale: Any) -> Pair:
        """Multiply the gradient of each example by a number, ``[batch]``."""
        if isinstance(self.left, OneHot):
            return Pair(self.left, self.right.scaled(scale))
        return Pair(self.left.scaled(scale), self.right)


def gradient(pair: Pair, out: Any = None) -> Any:
    """Return the gradient of each example, ``[batch, rows, cols]``.

    With groups its shape is ``[batch, groups, rows, cols]``.

    Args:
        pair: The factors.
        out: An array to write to, if the library supports it and neither factor is one-hot.
    """
    left, right = pair.left, pair.right
    if isinstance(left, OneHot):
        return left.gathered(right.full())
    if isinstance(right, OneHot):
        return array_namespace(left.array).matrix_transpose(right.gathered(left.full()))
    xp = array_namespace(left.array, right.array)
    into = {} if out is None else {"out": out}
    one, two = left.full(), right.full()
    if left.groups is not None:
        one, two = xp.permute_dims(one, (0, 2, 3, 1)), xp.permute_dims(two, (0, 2, 1, 3))
        return xp.matmul(one, two, **into)
    if left.positions == 1:
        return xp.multiply(one[:, 0, :, None], two[:, 0, None, :], **into)
    return xp.matmul(xp.matrix_transpose(one), two, **into)


def rows(gradients: Any) -> Pair:
    """Return a pair for gradients ``[batch, rows, cols]`` that have no factors.

    Each row of the matrix is a position, whose left factor is one-hot.

    >>> import numpy as np
    >>> gradients = np.arange(12.0).reshape(2, 2, 3)
    >>> rows(gradients).shape, bool((gradient(rows(gradients)) == gradients).all())
    ((2, 3), True)
    """
    xp = array_namespace(gradients)
    batch, size = gradients.shape[:2]
    numbers = xp.arange(size, device=device(gradients))
    return Pair(OneHot(xp.broadcast_to(numbers, (batch, size)), size), Dense(gradients))


def vector(gradients: Any) -> Pair:
    """Return a pair for gradients ``[batch, n]`` of a vector, as a matrix ``[n, 1]``.

    >>> import numpy as np
    >>> gradient(vector(np.ones((2, 3)))).shape
    (2, 3, 1)
    """
    xp = array_namespace(gradients)
    return Pair(Dense(gradients[:, None, :]), Dense(xp.ones_like(gradients[:, None, :1])))
