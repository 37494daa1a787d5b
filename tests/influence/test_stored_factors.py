"""Scores of positions from stores written by hand, and the tolerance of what is stored."""

import ml_dtypes
import numpy as np
import pytest

from sawlog import store
from sawlog.curvature import Curvature, Diagonal
from sawlog.errors import ArgumentError
from sawlog.factored import Projection
from sawlog.influence import Logs, attribute, token_scores
from sawlog.influence._tokens._find_factors import _EXACT
from sawlog.influence._tokens._stored_factors import BIAS, MATRIX, TABLE, StoredCall, StoredFactors
from sawlog.run_files import ragged
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import SCALE
from sawlog.run_files._options import Compression, Options
from sawlog.run_files._projections import projections_of

N, T = 5, 3
BLOCKS = {
    "linear": Block("one.weight", ("one.weight", "one.bias"), (4, 4), "right"),
    "conv1d": Block("two.weight", ("two.weight", "two.bias"), (4, 2), "left"),
    "table": Block("words.weight", ("words.weight",), (7, 3), "left"),
    "bias": Block("one.bias", ("one.bias",), (4, 1), "right"),
    "twice": Block("twice.weight", ("twice.weight",), (2, 3), "right"),
}


def whole_numbers(*shape):
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float64)


def logs_of(kind):
    """The stored factors of a layer, and its gradient at each position by hand."""
    inputs, outputs = whole_numbers(N, T, 3), whole_numbers(N, T, 4)
    ones = np.ones((N, T, 1))
    if kind == "linear":
        by_position = np.einsum("ntr,ntc->ntrc", outputs, np.concatenate([inputs, ones], 2))
        return {"forward/one": inputs, "backward/one": outputs}, by_position
    if kind == "conv1d":
        outputs = outputs[..., :2]
        by_position = np.einsum("ntr,ntc->ntrc", np.concatenate([inputs, ones], 2), outputs)
        return {"forward/two": inputs, "backward/two": outputs}, by_position
    if kind == "table":
        numbers = np.random.default_rng(3).integers(0, 7, (N, T))
        numbers[0, 0], numbers[-1, -1] = 6, 0
        looked_up = (numbers[..., None] == np.arange(7)).astype(float)
        by_position = np.einsum("ntr,ntc->ntrc", looked_up, outputs[..., :3])
        return {"forward/words": numbers.astype(float), "backward/words": outputs[..., :3]}, (
            by_position
        )
    if kind == "bias":
        return {"backward/one": outputs}, outputs[..., None]
    first, second = (inputs, outputs[..., :2]), (inputs[::-1] + 1, outputs[..., 2:])
    by_position = sum(np.einsum("ntr,ntc->ntrc", out, given) for given, out in (first, second))
    return {
        "forward/twice": first[0],
        "forward/twice#2": second[0],
        "backward/twice": second[1],  # the last call comes back first
        "backward/twice#2": first[1],
    }, by_position


def written(path, kind, compress=None, ids=None, spoil=0.0):
    """A store as a run leaves it; the projected gradients at each position."""
    block = BLOCKS[kind]
    if compress is not None:
        block = Block(block.name, block.parameters, block.shape, block.inputs, (2, None))
    columns, by_position = logs_of(kind)
    options = Options(log=("forward", "backward", "grad"), compress=compress)
    meta = {"blocks": [block.to_json()], "options": options.to_json()}
    with store.create(path, meta=meta) as writer:
        reader = store.open(path)
        side = projections_of(reader)[block.name].left
        if side is not None:
            assert block.rows != 2
            by_position = np.einsum("ri,ntrc->ntic", side.astype(float), by_position)
        stored = by_position.sum(1)
        stored[0, 0, 0] += spoil
        columns[f"grad/{block.name}"] = stored
        writer.append(np.arange(N) if ids is None else ids, columns)
    return by_position


RANK = Compression(rank=2, seed=3)


@pytest.mark.parametrize(
    ("kind", "compress"),
    [(kind, how) for kind in BLOCKS for how in (None, RANK) if how is None or kind != "twice"],
)
def test_every_kind_of_layer(tmp_path, kind, compress):
    by_position = written(tmp_path / "logs", kind, compress, ids=[30, 10, 20, 50, 40])
    name, shape = BLOCKS[kind].name, by_position.shape[2:]
    queries = {name: whole_numbers(4, *shape)}
    eigenvalues = np.random.default_rng(1).uniform(size=shape)
    curvature = Curvature("diagonal", {name: Diagonal(eigenvalues)})
    solved = queries[name] / (eigenvalues + 2.0)
    expected = np.einsum("qrc,ntrc->qnt", solved, by_position)
    options = {"curvature": curvature, "damping": 2.0}
    for budget in (1, 2_000, 1 << 28):  # queries and examples one by one, in blocks, at once
        found = token_scores(tmp_path / "logs", queries, budget=budget, **options)
        np.testing.assert_allclose(found, expected, atol=1e-9)
    some = token_scores(tmp_path / "logs", queries, [20, 30], **options)
    np.testing.assert_allclose(some, expected[:, [2, 0]], atol=1e-9)
    summed = attribute(tmp_path / "logs", queries, **options).values
    np.testing.assert_allclose(found.sum(-1), summed, atol=1e-9)


def test_factors_that_make_up_something_else(tmp_path):
    written(tmp_path / "logs", "linear", spoil=5.0)
    queries = {"one.weight": np.ones((1, 4, 4))}
    with pytest.raises(
        ArgumentError, match=r"do not multiply to the stored gradients of .*one\.we"
    ):
        token_scores(tmp_path / "logs", queries, curvature="identity")
    assert token_scores(tmp_path / "logs", queries, [1, 2], curvature="identity").shape == (1, 2, T)


def test_numbers_of_rows_that_are_none(tmp_path):
    block = BLOCKS["table"]
    split = StoredFactors(
        block, (StoredCall(TABLE, "forward/words", "backward/words", "left"),), (), 1, NONE
    )
    for number, there in ((0, True), (6, True), (7, False), (-1, False), (0.5, False)):
        rows = {"forward/words": np.full((1, 1), number), "backward/words": np.ones((1, 1, 3))}
        assert (split.pairs(rows) is not None) == there


# -- how far factors and gradients may be apart ---------------------------------------------------

NONE = Projection()
STRETCH = 100.0
FLOAT32, COARSE = 1e-3, 2.0**-7


def stored(values, dtype):
    """One example with one position; an int8 row with its scale."""
    values = np.asarray(values, np.float64)[None]
    if dtype != "int8":
        return {"": values.astype(getattr(ml_dtypes, dtype, dtype))}
    scale = np.abs(values).max() / 127
    return {"": np.rint(values / scale).astype(np.int8), SCALE: np.array([scale], np.float32)}


def noise(length, size, dtype):
    """By how much a vector whose greatest element is its length may be off."""
    if dtype == "int8":
        return length * COARSE + np.sqrt(size) * length / 127 / 2
    if dtype == "float16":
        return length * COARSE + np.sqrt(size) * 2.0**-25
    return length * (FLOAT32 if dtype in ("float32", "float64") else COARSE)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("size", [1.0, 2.0**-12])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("kind", ["matrix", "with bias", "bias"])
def test_the_tolerance_is_that_of_the_worst_rounding(kind, projected, size, dtype):
    """Off by a hundredth less is taken, by a hundredth more is not."""
    projection = Projection(STRETCH * np.eye(2), None) if projected else NONE
    stretch = STRETCH if projected else 1.0
    cols = {"matrix": 2, "with bias": 3, "bias": 1}[kind]
    parameters = ("w.weight", "w.bias")[: 2 if kind == "with bias" else 1]
    name = "w.bias" if kind == "bias" else "w.weight"
    block = Block(name, parameters, (2, cols), "right")
    call = StoredCall(
        BIAS if kind == "bias" else MATRIX, "" if kind == "bias" else "f", "b", "right"
    )
    split = StoredFactors(block, (call,), (), 1, projection)
    logs = {"b": stored([[size, 0.0]], dtype)}
    right, off = [1.0], noise(size, 2, dtype)
    if kind != "bias":
        logs["f"] = stored([[4.0, 0.0]], dtype)
        length = np.sqrt(17.0) if kind == "with bias" else 4.0
        right = [4.0, 0.0, 1.0][:cols]
        besides = noise(length, 2, dtype)
        if dtype == "int8":  # whose scale is that of what is stored
            besides = length * COARSE + np.sqrt(2) * 4.0 / 127 / 2
        off = size * besides + length * off + off * besides
    gradient = stretch * np.outer([size, 0.0], right)
    own = FLOAT32  # the gradients are stored as float64, and the model was float32
    for share, fits in ((0.99, True), (1.01, False)):
        apart = stretch * off
        limit = (apart + own * np.linalg.norm(gradient)) / (1 - own)
        moved = gradient.copy()
        moved[0] += share * limit * np.array(right) / np.linalg.norm(right)
        rows = {n + ending: v for n, both in logs.items() for ending, v in both.items()}
        rows[f"grad/{name}"] = moved[None]
        assert split.adds_up(split.pairs(rows), rows) == fits


def test_a_stretch_of_both_sides_counts(tmp_path):
    both = Projection(3.0 * np.eye(2), 5.0 * np.eye(2))
    split = StoredFactors(
        Block("w.weight", ("w.weight",), (2, 2), "right"),
        (StoredCall(MATRIX, "f", "b", "right"),),
        (),
        1,
        both,
    )
    rows = {"f": np.array([[[1.0, 0.0]]]), "b": np.array([[[1.0, 0.0]]])}
    limit = (15 * (2e-3 + 1e-6) + 15e-3) / (1 - 1e-3)
    for share, fits in ((0.99, True), (1.01, False)):
        rows["grad/w.weight"] = np.array([[[15 + share * limit, 0.0], [0.0, 0.0]]])
        assert split.adds_up(split.pairs(rows), rows) == fits


@pytest.mark.parametrize("heads", [(), (2,)], ids=["positions", "positions of heads"])
def test_positions_of_examples_of_different_lengths(tmp_path, heads):
    """The first batch has 2 positions, and later ones more and fewer."""
    block = Block("one.weight", ("one.weight",), (4, 3), "right")
    meta = {
        "blocks": [block.to_json()],
        "options": Options(log=("forward", "backward", "grad")).to_json(),
    }
    each = {}
    with store.create(tmp_path / "logs", meta=meta) as writer:
        for first, length in ((0, 2), (2, 5), (4, 1)):
            inputs = whole_numbers(2, length, *heads, 3) + first
            outputs = whole_numbers(2, length, *heads, 4)
            found = np.einsum("n...r,n...c->n...rc", outputs, inputs).reshape(2, -1, 4, 3)
            each |= dict(zip((first, first + 1), found, strict=True))
            columns = {"forward/one": inputs, "backward/one": outputs}
            ragged.append(
                writer, np.arange(first, first + 2), {**columns, "grad/one.weight": found.sum(1)}
            )
    queries = {"one.weight": whole_numbers(3, 4, 3)}
    for ids in ([0, 1, 2, 3, 4, 5], [4, 2], [5, 0], [4]):
        found = token_scores(tmp_path / "logs", queries, ids, curvature="identity")
        most = max(len(each[i]) for i in ids)
        assert found.shape == (3, len(ids), most)
        for place, i in enumerate(ids):
            expected = np.einsum("qrc,trc->qt", queries["one.weight"], each[i])
            np.testing.assert_allclose(found[:, place, : len(each[i])], expected)
            assert (found[:, place, len(each[i]) :] == 0).all()


def test_positions_of_logs_in_memory():
    with pytest.raises(ArgumentError, match="in memory do not belong to a run"):
        token_scores(Logs({"w": np.ones((1, 2))}), {"w": np.ones((1, 2))})


def test_numbers_of_rows_that_a_dtype_holds():
    """All numbers below the limit of a dtype are exact in it, and one above is not."""
    assert {np.dtype(each) for each in ("float32", "float16", ml_dtypes.bfloat16)} < set(_EXACT)
    for dtype, most in _EXACT.items():
        numbers = np.arange(max(0, most - 5000), most + 2)
        held = numbers.astype(np.float32).astype(dtype).astype(np.float64) == numbers
        assert held[:-1].all()
        assert not held[-1]
