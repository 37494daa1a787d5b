"""The analysis of a run as its users write it, and what is built on it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import sawlog
from sawlog import influence
from sawlog.errors import ArgumentError
from tests.torch.programs import Program, mlp
from tests.torch.test_run import go, start


@pytest.fixture
def logged(tmp_path):
    """A run over 12 examples, and the logs of 2 queries."""
    program = mlp(size=12)
    run, report = start(tmp_path, program, statistic="kfac", dtype="float64", precision="float64")
    go(run, program)
    run.eval()
    go(run, program, ["q0", "q1"], program.part(slice(3, 5)))
    return run, report, run.get_log(), program


def flat(program, rows=slice(None)):
    alone = program.alone()
    return np.concatenate([alone[n][rows].reshape(len(alone[n][rows]), -1) for n in alone], 1)


def test_as_users_write_it(logged):
    run, _, log, program = logged
    loader = run.build_log_dataloader(batch_size=5)
    assert [len(ids) for ids, _ in loader] == [5, 5, 2]
    assert len(loader) == 3
    ids = np.concatenate([ids for ids, _ in loader])
    assert ids.tolist() == list(range(12))
    scores = run.influence.compute_influence_all(log, loader, curvature="identity")
    grads = flat(program)
    np.testing.assert_allclose(scores.values, grads[3:5] @ grads.T, rtol=1e-9)
    again = influence.compute_influence_all(log, curvature="identity")
    assert np.array_equal(again.values, scores.values)
    pairs = influence.compute_influence(log, log, curvature="identity")
    np.testing.assert_allclose(pairs.values, grads[3:5] @ grads[3:5].T, rtol=1e-9)
    own = run.influence.compute_self_influence(log)
    every = sawlog.influence.compute_self_influence()
    np.testing.assert_allclose(own.values, every.values[3:5], rtol=1e-9)
    np.testing.assert_allclose(
        run.influence.compute_influence_all(log).values[:, 3:5].diagonal(), own.values, rtol=1e-9
    )


def test_queries_leave_no_trace(logged):
    run, _, _, program = logged
    before = sorted(run.path.rglob("*"))
    go(run, program, ["x"], program.part(slice(0, 1)))
    go(run, program, ["x"], program.part(slice(0, 1)))  # no id is taken
    assert [p for p in sorted(run.path.rglob("*")) if "curvature" not in str(p)] == [
        p for p in before if "curvature" not in str(p)
    ]
    run.setup(statistic="kfac", dtype="float64", precision="float64")
    assert run.missing([0, 99]).tolist() == [99]


def test_no_query_yet(tmp_path):
    run, _ = start(tmp_path, mlp())
    with pytest.raises(ArgumentError, match=r"run\.eval\(\)"):
        run.get_log()


def test_a_missing_statistic_names_the_stage(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program)
    go(run, program)
    run.eval()
    go(run, program, ["q"], program.part(slice(0, 1)))
    with pytest.raises(ArgumentError, match=r'statistic="kfac"'):
        run.influence.compute_influence_all(run.get_log())


def test_compressed_queries_fit(tmp_path):
    program = mlp(size=12)
    run, _ = start(tmp_path, program, statistic="kfac", compress=2, dtype="int8")
    go(run, program)
    run.eval()
    go(run, program, range(12))
    scores = run.influence.compute_influence_all(run.get_log())
    assert scores.values.shape == (12, 12)
    assert (scores.values.diagonal() > 0).all()


# -- methods --------------------------------------------------------------------------------------


def test_methods_are_what_they_say(logged, tmp_path):
    run, _, log, program = logged
    grads = flat(program)
    dots = grads[3:5] @ grads.T
    norms = np.sqrt(np.outer((grads[3:5] ** 2).sum(1), (grads**2).sum(1)))
    found = influence.gradient_cosine(run.store_path, log)
    np.testing.assert_allclose(found.values, dots / norms, rtol=1e-8)
    found = influence.tracin([(run.store_path, log), (run.store_path, log)], [0.1, 0.2])
    np.testing.assert_allclose(found.values, 0.3 * dots, rtol=1e-8)
    one = influence.attribute(run.store_path, log, curvature="fisher")
    found = influence.trak([(run.store_path, log), (run.store_path, log)], top_k=3)
    np.testing.assert_allclose(found.values, one.top(3).values, rtol=1e-8)
    star = influence.trackstar(run.store_path, log)
    assert np.argmax(star.values, 1).tolist() == [3, 4]
    np.testing.assert_allclose(star.values.max(1), 1.0, rtol=1e-8)
    assert np.array_equal(
        influence.influence_functions(run.store_path, log).values,
        influence.attribute(run.store_path, log).values,
    )
    with pytest.raises(ArgumentError, match="no checkpoints"):
        influence.trak([])


def test_activation_similarity(tmp_path):
    program = mlp(size=6)
    run, _ = start(tmp_path, program, log="forward", forward="output")
    go(run, program)
    run.eval()
    go(run, program, ["q"], program.part(slice(2, 3)))
    found = influence.activation_similarity(run.store_path, run.get_log(), "forward/0")
    values = program.model[0](program.batch[0]).detach().numpy()
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(found.values[0], unit @ unit[2], rtol=1e-5)


def test_activation_similarity_of_sequences(tmp_path):
    """Gradients and activations of queries come together; positions are pooled if asked for."""
    torch.manual_seed(0)
    batch = (torch.randn(5, 6, 3), torch.randn(5, 6, 2))
    loss = lambda model, x, y: ((model(x) - y) ** 2).sum()
    program = Program(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), batch, loss)
    run, _ = start(tmp_path, program, log=["forward", "grad"], forward="output")
    go(run, program)
    run.eval()
    go(run, program, ["q"], program.part(slice(2, 3)))
    log = run.get_log()
    assert log.layers == ["0.weight", "1.weight"]
    values = program.model[0](batch[0]).detach().numpy()
    for pool, rows in (
        (None, values.reshape(5, -1)),
        ("mean", values.mean(1)),
        (0, values[:, 0]),
        (-1, values[:, -1]),
    ):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        found = influence.activation_similarity(run.store_path, log, "forward/0", pool=pool)
        assert found.queries.tolist() == ["q"]
        assert found.ids.tolist() == list(range(5))
        np.testing.assert_allclose(found.values[0], unit @ unit[2], rtol=1e-5)
    for pool in (6, -7, "last", True):
        with pytest.raises(ArgumentError, match='"mean", or the index of one of the 6 positions'):
            influence.activation_similarity(run.store_path, log, "forward/0", pool=pool)
    with pytest.raises(ArgumentError, match="has no positions to pool"):
        influence.activation_similarity({"a": np.ones((2, 3))}, {"a": np.ones((1, 3))}, "a", pool=0)


def test_tokens_add_up(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)).double()
    batch = (torch.randn(5, 6, 3).double(), torch.randn(5, 6, 2).double())
    program = Program(model, batch, lambda model, x, y: ((model(x) - y) ** 2).sum())
    options = {"statistic": "kfac", "dtype": "float64", "precision": "float64"}
    run, _ = start(tmp_path, program, log=["forward", "backward", "grad"], **options)
    go(run, program)
    run.eval()
    go(run, program, ["q"], program.part(slice(1, 2)))
    whole = influence.attribute(run.store_path, run.get_log())
    tokens = influence.token_scores(run.store_path, run.get_log(), [4, 0])
    assert tokens.shape == (1, 2, 6)
    np.testing.assert_allclose(tokens.sum(-1)[0], whole.values[0, [4, 0]], rtol=1e-8)
    other, _ = start(tmp_path / "other", program)
    go(other, program)
    other.finalize()
    with pytest.raises(ArgumentError, match="both factors"):
        influence.token_scores(other.store_path, run.get_log(), [0])


# -- tasks ----------------------------------------------------------------------------------------


def blobs(count=200, wrong=20):
    torch.manual_seed(0)
    x = torch.randn(count, 2) + 3 * torch.tensor([[1.0, 0], [-1, 0]])[torch.arange(count) % 2]
    y = torch.arange(count) % 2
    flipped = torch.randperm(count)[:wrong]
    y[flipped] = 1 - y[flipped]
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return Program(model, (x, y), lambda model, x, y: F.cross_entropy(model(x), y)), flipped


def test_wrong_labels_and_pruning(tmp_path):
    program, flipped = blobs()
    run, _ = start(tmp_path, program, statistic="kfac")
    go(run, program)
    run.finalize()
    worst = {each for each, _ in influence.label_errors(run.store_path).top(20)}
    assert len(worst & set(flipped.tolist())) >= 17
    ranking = influence.self_influence(run.store_path)
    keep, out = influence.prune(ranking, 0.1)
    assert (len(keep), len(out)) == (180, 20)
    assert set(out.tolist()) == worst
    run.eval()
    clean = [i for i in range(200) if i not in set(flipped.tolist())][:40]
    go(run, program, clean, program.part(clean))
    scores = run.influence.compute_influence_all(run.get_log())
    keep, out = influence.prune(scores, 0.1)
    assert len(set(out.tolist()) & set(flipped.tolist())) >= 17
    with pytest.raises(ArgumentError, match="share"):
        influence.prune(scores, 3)


def test_near_duplicates(tmp_path):
    program = mlp(size=10)
    x, y = program.batch
    x = torch.cat([x, x[:3], x[:1] * (1 + 1e-9)])
    y = torch.cat([y, y[:3], y[:1]])
    program = Program(program.model, (x, y), program.loss)
    run, _ = start(tmp_path, program)
    go(run, program)
    run.finalize()
    groups = influence.near_duplicates(run.store_path, threshold=0.9999)
    assert {tuple(sorted(group)) for group in groups} == {(0, 10, 13), (1, 11), (2, 12)}
    assert len(groups[0]) == 3
    with pytest.raises(ArgumentError, match="cosine"):
        influence.near_duplicates(run.store_path, threshold=2)


def test_a_table_for_text(logged):
    run, _, log, _ = logged
    scores = run.influence.compute_influence_all(log)
    texts = {i: f"text [of] example {i} " + "word " * 30 for i in range(12)}
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(influence.attribution_table(scores, texts, {"q0": "what?", "q1": "who?"}, k=2))
    console.file.close()
    text = console.export_text()
    for query, place in (("what?", 3), ("who?", 4)):
        assert query in text
        assert f"text [of] example {place}" in text
    assert text.count("...") == 8
    best = influence.attribution_table(scores.top(2), lambda key: f"row {key}")
    assert best.row_count == 4
