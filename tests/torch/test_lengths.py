"""Sequences of different lengths from batch to batch: stored, read, and scored by position."""

import numpy as np
import pytest
import torch

import sawlog
from sawlog import influence
from sawlog.errors import ArgumentError, CaptureError
from sawlog.run_files import ragged
from sawlog.run_files._encode import decode
from tests.torch.programs import Program
from tests.torch.test_run import go, start
from tests.torch.test_tokens import BOTH, EXACT, Words, squares

LENGTHS = (4, 2, 4, 11, 3, 9, 1, 25)


def programs(lengths=LENGTHS):
    """Two examples of each length, and the ids that they have."""
    torch.manual_seed(0)
    model = Words().double()
    found = []
    for place, length in enumerate(lengths):
        x, y = torch.randint(1, 11, (2, length)), torch.randn(2, length, 3).double()
        found.append(([2 * place, 2 * place + 1], Program(model, (x, y), squares)))
    return found


def logged(tmp_path, **options):
    own = programs()
    run, _ = start(tmp_path, own[0][1], **{"log": BOTH, **EXACT, **options})
    for ids, program in own:
        go(run, program, ids)
    return run, own


@pytest.mark.turns
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bfloat16"])
def test_logs_come_back_in_full_length(tmp_path, dtype):
    run, own = logged(tmp_path, dtype=dtype)
    run.finalize()
    exact = {"float64": 1e-12, "float32": 1e-5}.get(dtype, 1e-2)
    with sawlog.store.open(run.store_path) as reader:
        assert ragged.is_ragged(reader, "forward/two")
        assert "forward/two+3" in reader.names  # 4, then 4, 8 and 16 more
        assert "forward/two+4" not in reader.names
        order = [ids for ids, _ in reversed(own)]
        wanted = [each for ids in order for each in ids]
        lengths = ragged.lengths_of(reader, "forward/embed", wanted)
        assert lengths.tolist() == [length for length in reversed(LENGTHS) for _ in range(2)]
        names = ["forward/embed", "forward/one", "backward/two"]
        scales = [n + ".scale" for n in names if n + ".scale" in reader.names]
        rows = ragged.gather(reader, wanted, [*names, *scales])
        at = 0
        for (_, program), length in zip(reversed(own), reversed(LENGTHS), strict=True):
            x = program.batch[0]
            expected = program.model.embed(x).detach().numpy()
            found = decode(rows, "forward/one")[at : at + 2]
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found[:, :length], expected, atol=exact * scale, rtol=0)
            assert not found[:, length:].any()
            ids = decode(rows, "forward/embed")[at : at + 2]
            np.testing.assert_allclose(ids[:, :length], x, atol=10 * exact)
            assert not decode(rows, "backward/two")[at : at + 2][:, length:].any()
            at += 2


def test_token_scores_of_all_lengths(tmp_path):
    run, own = logged(tmp_path)
    run.eval()
    go(run, own[3][1], ["q0", "q1"])
    log = run.get_log()
    tokens = influence.token_scores(run.store_path, log, damping=0.1)
    assert tokens.shape == (2, 16, 25)
    whole = influence.attribute(run.store_path, log, damping=0.1)
    np.testing.assert_allclose(tokens.sum(-1), whole.values, rtol=1e-8, atol=1e-12)
    for (ids, _), length in zip(own, LENGTHS, strict=True):
        assert (tokens[:, ids, length:] == 0).all()
        assert (tokens[:, ids, :length] != 0).all()
        alone = influence.token_scores(run.store_path, log, ids, damping=0.1)
        assert alone.shape == (2, 2, length)
        np.testing.assert_allclose(alone, tokens[:, ids, :length], rtol=1e-10, atol=1e-14)
    # the same examples in a run of their own, where all are as long
    ids, program = own[5]
    single, _ = start(tmp_path / "single", program, log=BOTH, **EXACT)
    go(single, program, ids)
    single.finalize()
    expected = influence.token_scores(single.store_path, log, ids, curvature="identity")
    found = influence.token_scores(run.store_path, log, ids, curvature="identity")
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


def test_a_run_of_many_lengths_goes_on(tmp_path):
    own = programs()
    for parts in (own[:3], own):
        run, _ = start(tmp_path, own[0][1], log=BOTH, **EXACT)
        for ids, program in parts:
            if len(run.missing(ids)):
                go(run, program, ids)
        run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert sorted(reader.ids("grad/one.weight").tolist()) == list(range(16))
        assert ragged.lengths_of(reader, "forward/one", [0, 2, 15]).tolist() == [4, 2, 25]
        assert reader.verify().ok


def test_activations_of_all_lengths(tmp_path):
    run, own = logged(tmp_path, log=["forward"], statistic=[])
    run.finalize()
    with pytest.raises(ArgumentError, match=r"different numbers of positions .* pool="):
        influence.activation_similarity(run.store_path, run.store_path, "forward/two")
    pooled = {"mean": lambda h: h.mean(1), -1: lambda h: h[:, -1], 0: lambda h: h[:, 0]}
    for pool, by_hand in pooled.items():
        found = influence.activation_similarity(
            run.store_path, run.store_path, "forward/one", pool=pool
        )
        rows = np.concatenate([by_hand(p.model.embed(p.batch[0]).detach().numpy()) for _, p in own])
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(found.values, unit @ unit.T, rtol=1e-6, atol=1e-9)
    with pytest.raises(ArgumentError, match="that all examples have"):
        influence.activation_similarity(run.store_path, run.store_path, "forward/one", pool=2)


def test_means_of_different_lengths_are_refused(tmp_path):
    own = programs()
    run, _ = start(tmp_path, own[0][1], log=["forward"], statistic="mean")
    go(run, *_swapped(own[0]))
    with pytest.raises(CaptureError, match=r"differ in length\. Hint: statistic=\"covariance\""):
        go(run, *_swapped(own[1]))


def _swapped(pair):
    return pair[1], pair[0]


def test_queries_of_different_lengths_are_joined(tmp_path):
    run, own = logged(tmp_path)
    run.eval()
    logs = []
    for place in (1, 3):
        go(run, own[place][1], [f"q{place}a", f"q{place}b"])
        logs.append(run.get_log())
    joined = logs[0] + logs[1]
    rows = influence.Logs(joined, names=["forward/one"]).whole().columns["forward/one"].rows()
    assert rows.shape == (4, 11, 6)
    assert not rows[:2, 2:].any()
    found = run.influence.compute_influence_all(joined).values
    parts = [run.influence.compute_influence_all(each).values for each in logs]
    np.testing.assert_allclose(found, np.concatenate(parts), rtol=1e-9)
