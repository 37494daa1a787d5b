"""Where the examples are, through random reshapes and transposes of arrays of their numbers."""

import random

import numpy as np
import pytest

from sawlog.jax._capture import slices
from sawlog.jax._capture.axes import Axis, Mixed, Split, digits_of
from sawlog.jax._capture.axis_rules.moving import _permuted, reshaped
from sawlog.jax._capture.sub_batches import Digit


def factors(rng, size):
    """A random shape of this size."""
    shape = []
    while size > 1:
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        shape.append(rng.choice(divisors))
        size //= shape[-1]
    for _ in range(rng.randrange(2)):
        shape.insert(rng.randrange(len(shape) + 1), 1)
    return tuple(shape)


def moved(rng, numbers, place, examples):
    """The same array in another shape or order, and where it has the examples."""
    if rng.random() < 0.5:
        new = factors(rng, numbers.size)
        return numbers.reshape(new), reshaped(place, numbers.shape, new, examples)
    order = list(range(numbers.ndim))
    rng.shuffle(order)
    return numbers.transpose(order), _permuted(place, tuple(order))


def test_examples_stay_where_the_place_says(monkeypatch):
    monkeypatch.setattr(slices, "jnp", np)  # no compilation
    rng, kinds = random.Random(0), {Axis: 0, Split: 0, Mixed: 0}
    for _ in range(400):
        examples = rng.choice([4, 6, 8, 12])
        shape = [examples, rng.choice([1, 2, 3]), rng.choice([2, 4])]
        axis = rng.randrange(3)
        shape[0], shape[axis] = shape[axis], shape[0]
        along = [-1 if dim == axis else 1 for dim in range(3)]
        numbers = np.broadcast_to(np.arange(examples).reshape(along), shape)
        place = Axis(axis)
        for _ in range(4):
            numbers, place = moved(rng, numbers, place, examples)
            kinds[type(place)] += 1
            if isinstance(place, Mixed):
                break
            rows = slices.split(numbers, place, examples).reshape(examples, -1)
            assert (rows == np.arange(examples)[:, None]).all()
            one = rng.randrange(examples)
            kept = slices.masked(numbers + 1, place, examples, one)
            np.testing.assert_array_equal(kept, np.where(numbers == one, one + 1, 0))
    assert min(kinds.values()) > 100


@pytest.mark.parametrize(("sizes", "index"), [((2, 3), 0), ((2, 3), 1), ((2, 3, 2), 1), ((6,), 0)])
def test_a_digit_is_taken_out_and_put_back(monkeypatch, sizes, index):
    """What a loop over a digit stacks has the examples where the digit is inserted."""
    monkeypatch.setattr(slices, "jnp", np)
    digit, examples = Digit(sizes, index), int(np.prod(sizes))
    numbers = np.arange(examples).reshape(sizes)
    steps = np.moveaxis(numbers, index, 0)  # [count, *rest]: what each step sees
    for inner in (steps.reshape(digit.count, -1), steps):
        rest = inner.shape[1:] if inner.ndim > 1 else ()
        parts = [Axis(dim + 1) for dim in range(len(rest))]
        place = Split(tuple(parts), rest) if len(rest) != 1 else parts[0]
        if rest and int(np.prod(rest)) == 1:
            place = Split((), ())
        found = digit.inserted(place, Axis(0))
        assert sum(size > 1 for _, size in digits_of(found, examples)) == len(
            digits_of(found, examples)
        )
        rows = slices.split(inner, found, examples).reshape(examples, -1)
        assert (rows == np.arange(examples)[:, None]).all()
