"""A batch that is cut into pieces and put together has the rows of the whole batch, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog
from sawlog.errors import CaptureError
from sawlog.jax._capture.axes import ONE, Axis, CutBatch, Mixed
from sawlog.jax._capture.cut_rows import completed, numbers_of, place_of, selected
from sawlog.jax._capture.program import random_matrices
from tests.jax.capture import splitting
from tests.jax.capture.oracle import assert_equal, assert_pairs, gradients
from tests.jax.capture.splitting import EXAMPLES, each, one

SHUFFLED = np.random.default_rng(1).permutation(EXAMPLES)


def halves(p, x):
    return jnp.concatenate([each(p, x[:3]), each(p, x[3:])])


def at_positions(p, x):
    def step(i, losses):
        own = each(p, lax.dynamic_slice_in_dim(x, 2 * i, 2))
        return lax.dynamic_update_slice_in_dim(losses, own, 2 * i, 0)

    return lax.fori_loop(0, EXAMPLES // 2, step, jnp.zeros(EXAMPLES))


def shuffled(p, x):
    x = x[SHUFFLED]
    return jnp.concatenate([each(p, x[:5]), each(p, x[5:])])[np.argsort(SHUFFLED)]


def pieces_in_calls(p, x):
    own = jax.checkpoint(jax.jit(lambda a, b: jnp.concatenate([each(p, a), splitting.each(p, b)])))
    return own(x[:2], x[2:])


def steps_of_a_scan(p, x):
    def step(position, _):
        return position + 4, each(p, lax.dynamic_slice_in_dim(x, position, 4))

    return lax.scan(step, 0, None, length=EXAMPLES // 4)[1].reshape(-1)


LOSSES = {
    "halves": halves,
    "pieces of pieces": lambda p, x: jnp.concatenate([halves(p, x[:5]), each(p, x[5:])]),
    "split": lambda p, x: jnp.concatenate([each(p, part) for part in jnp.split(x, 4)]),
    "single examples": lambda p, x: jnp.stack([one(p, x[i]) for i in range(EXAMPLES)]),
    "every other one, written": lambda p, x: (
        jnp.zeros(EXAMPLES).at[::2].set(each(p, x[::2])).at[1::2].set(each(p, x[1::2]))
    ),
    "reversed and back": lambda p, x: each(p, x[::-1])[::-1],
    "rolled and back": lambda p, x: jnp.roll(each(p, jnp.roll(x, 3, 0)), -3),
    "shuffled and back": shuffled,
    "micro-batches by position": at_positions,
    "micro-batches by a counter": steps_of_a_scan,
    "examples by number": lambda p, x: lax.map(lambda i: one(p, x[i]), jnp.arange(EXAMPLES)),
    "a remainder": lambda p, x: lax.map(lambda x: one(p, x), x, batch_size=3),
    "calls": pieces_in_calls,
    "two batches in one": lambda p, x: (
        ((both := each(p, jnp.concatenate([x, 2 * x])))[:EXAMPLES] * 3 + 0 * both[EXAMPLES:]) / 3
    ),
}
SUMS = {
    "sum": lambda p, x: each(p, x[:3]).sum() + each(p, x[3:]).sum(),
    "sum of single losses": lambda p, x: sum(one(p, x[i]) for i in range(EXAMPLES)),
    "sum in a loop": lambda p, x: lax.fori_loop(
        0, 4, lambda i, t: t + each(p, lax.dynamic_slice_in_dim(x, 2 * i, 2)).sum(), 0.0
    ),
}


@pytest.mark.parametrize("name", [*LOSSES, *SUMS])
def test_rows_of_pieces_are_those_of_the_batch(name: str):
    loss, options = (LOSSES | SUMS)[name], {"reduction": "sum" if name in SUMS else "none"}
    with jax.enable_x64(True):
        params, batch = splitting.make()
        whole = sawlog.jax.capture(loss, what=("grad", "pairs"), **options)
        plan = whole.plan(params, batch)
        matrices = random_matrices(plan.blocks, 2)
        small = sawlog.jax.capture(loss, projection=matrices, **options)

        def both(params, batch):
            captured, wanted = whole(params, batch), gradients(each, params, batch)
            return captured, small(params, batch).grads, wanted

        captured, projected, wanted = jax.jit(both)(params, batch)
        assert_equal(captured.grads, wanted)
        assert_pairs(captured, plan, projected, matrices)


def test_pieces_have_one_pair_for_the_whole_batch():
    params, batch = splitting.make()
    parted, whole = (
        sawlog.jax.capture(loss, what=("pairs",))(params, batch).pairs for loss in (halves, each)
    )
    assert {*parted} == {*whole}
    for name, (pair,) in whole.items():
        ((own,), *_) = (parted[name],)
        np.testing.assert_allclose(own.left.array, pair.left.array, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(own.right.array, pair.right.array, rtol=1e-4, atol=1e-6)
        assert own.right.one == pair.right.one


def test_a_layer_of_one_half_has_gradients_and_no_pairs():
    def loss(p, x):
        return jnp.concatenate([each(p, x[:3]), (x[3:] @ p["w"]).sum(-1)])

    params, batch = splitting.make()
    rows = sawlog.jax.capture(loss)(params, batch).grads["v"]
    assert np.abs(rows[:3]).min() > 0
    assert not np.asarray(rows[3:]).any()
    with pytest.raises(CaptureError, match=r"used by some of the examples .* Hint: "):
        sawlog.jax.capture(loss, what=("pairs",))(params, batch)


REFUSED = {
    "another order": (lambda p, x: jnp.concatenate([each(p, x[3:]), each(p, x[:3])]), "order"),
    "one half twice": (lambda p, x: jnp.concatenate([each(p, x[:4])] * 2), "order"),
    "halves multiplied": (
        lambda p, x: jnp.concatenate([each(p, x[:4] * x[4:]), each(p, x[4:])]),
        "'mul' at .* combines different examples",
    ),
    "neighbours": (
        lambda p, x: jnp.concatenate([each(p, x[:1]), each(p, x[1:] - x[:-1])]),
        "'sub' at .* combines different examples",
    ),
    "the first example": (lambda p, x: each(p, x - x[0]), "combines different examples"),
    "the wrong targets": (
        lambda p, x: jnp.concatenate([each(p, x[:4]) * x[4:, 0], each(p, x[4:]) * x[:4, 0]]),
        "'mul' at .* combines different examples",
    ),
    "an unknown position": (
        lambda p, x: jnp.broadcast_to(
            each(p, lax.dynamic_slice_in_dim(x, jnp.int32(p["b"][0]), 1)), (EXAMPLES,)
        ),
        "'dynamic_slice' at .* not known",
    ),
    "overlapping steps": (
        lambda p, x: lax.scan(
            lambda c, i: (c, each(p, lax.dynamic_slice_in_dim(x, i, 2))), 0, jnp.arange(4)
        )[1].reshape(-1),
        "dynamic_slice|order|more often",
    ),
    "padded": (lambda p, x: each(p, jnp.pad(x, ((0, 2), (0, 0))))[:EXAMPLES], "'pad' at"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pieces_that_are_combined(name: str):
    loss, word = REFUSED[name]
    with pytest.raises(CaptureError, match=word) as caught:
        sawlog.jax.capture(loss).plan(*splitting.make())
    assert "Hint:" in str(caught.value)


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, x: (each(p, x[:4]) * each(p, x[4:])).sum(),
        lambda p, x: each(p, x[:4]).sum() ** 2 + each(p, x[4:]).sum(),
        lambda p, x: jnp.sin(x[:4] @ p["w"] + x[4:] @ p["w"]).sum(),
    ],
)
def test_sums_of_combined_pieces(loss):
    with pytest.raises(CaptureError, match=r"combines different examples|sum over examples"):
        sawlog.jax.capture(loss, reduction="sum").plan(*splitting.make())


def test_places_of_rows():
    assert place_of([0, 1, 2], 1, 3) == Axis(1)
    assert place_of([0, 0, 1, 1, 2, 2] * 2, 0, 3) == Axis(0, 2, 2)
    assert place_of([2, 2, 0, 0], 0, 3) == CutBatch(Axis(0, 1, 2), (2, 0))
    assert place_of([1, 1], 0, 3) == CutBatch(ONE, (1,))
    assert isinstance(place_of([0, 1, 0], 0, 3), Mixed)
    assert isinstance(place_of([], 0, 3), Mixed)
    assert completed([0, -1, 2], 3).tolist() == [0, 1, 2]
    assert completed([1, -1, 2], 3) is None
    assert completed([0, -1, -1, 1, 2, -1], 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert completed([0, 1, -1, 0, 1, 2], 3) is None
    assert completed([0, -1], 3) is None


def test_rows_of_a_dimension_that_has_other_positions_too():
    """Example by example ``[examples * 2]``, and copy by copy ``[2 * examples]``."""
    assert selected(Axis(0, 1, 2), [2, 3, 4, 5], 3) == CutBatch(Axis(0, 1, 2), (1, 2))
    assert selected(Axis(1, 2), [2, 5], 3) == CutBatch(ONE, (2,))
    assert selected(Axis(1, 2), [1, 2, 4, 5], 3) == CutBatch(Axis(1, 2), (1, 2))
    assert selected(Axis(0, 2, 2), range(6), 3) == Axis(0, 1, 2)
    assert isinstance(selected(Axis(0, order=1), [0], 3), Mixed)


@pytest.mark.parametrize(
    ("place", "numbers"),
    [
        (Axis(0, 1, 2), [0, 0, 1, 1, 2, 2]),
        (Axis(0, 2), [0, 1, 2, 0, 1, 2]),
        (CutBatch(Axis(0, 1, 3), (2, 0)), [2, 2, 2, 0, 0, 0]),
        (CutBatch(Axis(0, 3), (2, 0)), [2, 0, 2, 0, 2, 0]),
        (CutBatch(ONE, (1,)), [1] * 6),
        (Axis(1, 1, 2), None),
        (Axis(0, 1, 2, order=0), None),
    ],
)
def test_which_example_each_of_six_rows_belongs_to(place, numbers):
    found = numbers_of(place, 0, 6, 3)
    assert (None if found is None else found.tolist()) == numbers


def test_some_examples_of_a_step_have_no_pairs():
    """Which of the batch they are depends on the step: other uses cannot make them complete."""

    def loss(p, x):
        def step(_, x):
            return None, jnp.concatenate([each(p, x[:2]), x[2:].sum(-1)])

        in_steps = lax.scan(step, None, x.reshape(2, EXAMPLES // 2, -1))[1].reshape(-1)
        return in_steps + jnp.concatenate([x[:2].sum(-1), each(p, x[2:])])

    with pytest.raises(CaptureError, match=r"used by some of the examples .* Hint: "):
        sawlog.jax.capture(loss, what=("pairs",))(*splitting.make())


def test_pieces_of_a_later_piece_are_those_of_the_batch():
    """What is cut from examples 3 to 7 has their numbers, not those of the first ones."""

    def loss(p, x):
        later = x[3:]
        parts = jnp.concatenate([each(p, later[:2]), each(p, later[2:][::-1])[::-1]])
        return jnp.concatenate([each(p, x[:3]), parts])

    with jax.enable_x64(True):
        captured = sawlog.jax.capture(loss)
        both = jax.jit(lambda p, x: (captured(p, x).grads, gradients(each, p, x)))
        assert_equal(*both(*splitting.make()))
