"""Scores of positions, against autograd through a copy of the weights for each position."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from transformers.pytorch_utils import Conv1D

import sawlog
from sawlog import influence
from sawlog.errors import ArgumentError
from sawlog.factored import random_projection
from tests.torch.programs import Program, language, mlp
from tests.torch.test_run import go, start

WORDS, WIDTH, LENGTH = 11, 6, 5
EXACT = {"dtype": "float64", "precision": "float64", "statistic": "kfac"}
BOTH = ["forward", "backward", "grad"]
LAYERS = ["embed.weight", "one.weight", "two.weight", "three.weight", "three.bias"]


class Words(nn.Module):
    """Every layer that can be split by position."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.one = Conv1D(8, WIDTH)
        self.two = nn.Linear(8, WIDTH)
        self.three = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.three(self.mixed(self.two(torch.tanh(self.one(self.embed(x))))))

    @staticmethod
    def mixed(h):
        return torch.tanh(h).cumsum(1)

    def by_position(self, x, weights):
        """The same, with the weights of each position, ``[positions, ...]``."""
        h = torch.einsum("ntv,tvd->ntd", nn.functional.one_hot(x, WORDS).double(), weights[0])
        h = torch.tanh(torch.einsum("ntd,tde->nte", h, weights[1]) + weights[2])
        h = self.mixed(torch.einsum("ntd,ted->nte", h, weights[3]) + weights[4])
        return torch.einsum("ntd,ted->nte", h, weights[5]) + weights[6]


def squares(model, x, y):
    return ((model(x) - y) ** 2).sum(-1).mul(counts(x)).sum()


def counts(x):
    """Which positions count: not those of the word 0, which is padding at the end."""
    return (x != 0).cumprod(1)


def words(size=4):
    torch.manual_seed(0)
    x = torch.randint(1, WORDS, (size, LENGTH))
    x[1, 3:] = 0
    y = torch.randn(size, LENGTH, 3).double()
    return Program(Words().double(), (x, y), squares)


def by_autograd(program):
    """The gradient of each example at each position as the blocks have it: ``[n, t, ...]``."""
    model, rows = program.model, []
    names = ("embed.weight", "one.weight", "one.bias", "two.weight", "two.bias", "three.weight")
    names = (*names, "three.bias")
    for i in range(program.size):
        x, y = program.part(slice(i, i + 1))
        weights = [
            model.get_parameter(name).detach().expand(LENGTH, *model.get_parameter(name).shape)
            for name in names
        ]
        weights = [each.clone().requires_grad_() for each in weights]
        loss = squares(lambda x, weights=weights: model.by_position(x, weights), x, y)
        rows.append([each.numpy() for each in torch.autograd.grad(loss, weights)])
    found = dict(zip(names, (np.stack(each) for each in zip(*rows, strict=True)), strict=True))
    found["one.weight"] = np.concatenate(
        [found["one.weight"], found.pop("one.bias")[:, :, None]], 2
    )
    found["two.weight"] = np.concatenate([found["two.weight"], found.pop("two.bias")[..., None]], 3)
    found["three.bias"] = found["three.bias"][..., None]
    return found


def run_of(tmp_path, program, **options):
    """A run over a program, and the logs of two queries."""
    run, report = start(tmp_path, program, **{"log": BOTH, **EXACT, **options})
    go(run, program)
    run.eval()
    go(run, program, ["q0", "q1"], program.part(slice(1, 3)))
    return run, run.get_log(), report


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    program = words()
    return program, *run_of(tmp_path_factory.mktemp("run"), program)


def test_positions_are_those_of_autograd(whole):
    program, run, log, report = whole
    rows = by_autograd(program)
    rows["three.weight"] = np.concatenate([rows["three.weight"], rows.pop("three.bias")], 3)
    assert set(rows) == {block.name for block in report.blocks}
    expected = sum(
        np.einsum("qij,ntij->qnt", each[1:3].sum(1), each, optimize=True) for each in rows.values()
    )
    found = influence.token_scores(run.store_path, log, curvature="identity")
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert (found[:, 1, 3:] == 0).all()
    assert (found[:, 1, :3] != 0).all()


@pytest.mark.parametrize("curvature", ["ekfac", "fisher"])
def test_they_add_up_in_any_curvature_and_in_any_blocks(whole, curvature):
    _, run, log, _ = whole
    scores = influence.attribute(run.store_path, log, curvature=curvature, damping=0.1)
    found = influence.token_scores(run.store_path, log, curvature=curvature, damping=0.1)
    np.testing.assert_allclose(found.sum(-1), scores.values, rtol=1e-8, atol=1e-12)
    some = influence.token_scores(
        run.store_path, log, [3, 1], curvature=curvature, damping=0.1, budget=1
    )
    np.testing.assert_allclose(some, found[:, [3, 1]], rtol=1e-10, atol=1e-13)


def test_layers_are_chosen(whole):
    _, run, log, _ = whole
    for names in (["embed.weight"], ["one.weight", "two.weight"]):
        scores = influence.attribute(run.store_path, log, names=names)
        found = influence.token_scores(run.store_path, log, names=names)
        np.testing.assert_allclose(found.sum(-1), scores.values, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", ["orthonormal", "pca"])
def test_compressed(tmp_path, kind):
    program = words()
    program.model.three.weight.requires_grad_(False)  # leaves a bias alone
    if kind == "pca":
        first, _ = start(tmp_path, program, **EXACT, save=[])
        go(first, program)
        first.finalize()
    run, log, report = run_of(tmp_path, program, compress={"kind": kind, "rank": 2})
    assert [block.name for block in report.blocks] == [n for n in LAYERS if n != "three.weight"]
    found = influence.token_scores(run.store_path, log)
    scores = influence.attribute(run.store_path, log)
    np.testing.assert_allclose(found.sum(-1), scores.values, rtol=1e-8, atol=1e-12)
    if kind == "pca":
        return
    expected, rows = 0.0, by_autograd(program)
    for block in report.blocks:
        each = rows[block.name]
        for side, rank in zip(("left", "right"), block.ranks, strict=True):
            axis = 2 if side == "left" else 3
            if rank is not None:
                size, name = each.shape[axis], f"{block.name}/{side}"
                matrix = random_projection(kind, size, rank, seed=0, name=name).astype(float)
                each = np.moveaxis(np.tensordot(each, matrix, (axis, 0)), -1, axis)
        expected = expected + np.einsum("qij,ntij->qnt", each[1:3].sum(1), each)
    found = influence.token_scores(run.store_path, log, curvature="identity")
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_few_bits(tmp_path, whole, dtype):
    run, log, _ = run_of(tmp_path, words(), dtype=dtype)
    names = ["one.weight", "two.weight"] + ["embed.weight"] * (dtype != "int8")
    found = influence.token_scores(run.store_path, log, names=names, curvature="identity")
    exact = influence.token_scores(whole[1].store_path, log, names=names, curvature="identity")
    np.testing.assert_allclose(found, exact, atol=0.02 * np.abs(exact).max())
    if dtype == "int8":
        with pytest.raises(ArgumentError, match=r"embed\.weight: the indices of its 11 rows"):
            influence.token_scores(run.store_path, log)


def test_a_layer_that_is_called_twice_and_a_weight_that_two_share(tmp_path):
    program = language("sum")
    run, log, _ = run_of(tmp_path, program)
    for names in (["mix.weight"], ["embed.weight", "mix.weight", "norm.bias"]):
        scores = influence.attribute(run.store_path, log, names=names)
        found = influence.token_scores(run.store_path, log, names=names)
        np.testing.assert_allclose(found.sum(-1), scores.values, rtol=1e-8)
    with pytest.raises(ArgumentError, match=r"(?s)norm\.weight: .*scale.*names=\['embed.weight'"):
        influence.token_scores(run.store_path, log)
    small, log, _ = run_of(tmp_path / "small", program, compress=2)
    scores = influence.attribute(small.store_path, log, names=["embed.weight"])
    found = influence.token_scores(small.store_path, log, names=["embed.weight"])
    np.testing.assert_allclose(found.sum(-1), scores.values, rtol=1e-8)


def test_a_layer_of_the_same_shape_whose_weight_is_frozen(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4)).double()
    model[2].weight.requires_grad_(False)
    batch = (torch.randn(3, 2, 4).double(), torch.randn(3, 2, 4).double())
    program = Program(model, batch, lambda model, x, y: ((model(x) - y) ** 2).sum())
    run, log, _ = run_of(tmp_path, program)
    found = influence.token_scores(run.store_path, log)
    scores = influence.attribute(run.store_path, log)
    np.testing.assert_allclose(found.sum(-1), scores.values, rtol=1e-8)


def test_a_padding_index_is_seen(tmp_path):
    program = words()
    program.model.embed = nn.Embedding(WORDS, WIDTH, padding_idx=int(program.batch[0][0, 0]))
    program.model.double()
    run, log, _ = run_of(tmp_path, program)
    with pytest.raises(ArgumentError, match=r"embed\.weight: .*padding index"):
        influence.token_scores(run.store_path, log)
    names = ["one.weight", "two.weight", "three.weight"]
    assert influence.token_scores(run.store_path, log, names=names).shape == (2, 4, LENGTH)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


def test_what_cannot_be_split(tmp_path):
    torch.manual_seed(0)
    batch = (torch.randn(3, 4, 3), torch.randn(3, 2))
    program = Program(Pooled(), batch, lambda model, x, y: ((model(x) - y) ** 2).sum())
    run, log, _ = run_of(tmp_path / "pooled", program)
    with pytest.raises(ArgumentError, match=r"positions: 4 in body\.weight; 1 in head\.weight"):
        influence.token_scores(run.store_path, log)
    assert influence.token_scores(run.store_path, log, names=["body.weight"]).shape == (2, 3, 4)
    run, log, _ = run_of(tmp_path / "outputs", mlp(), forward="output")
    with pytest.raises(ArgumentError, match='forward="input"'):
        influence.token_scores(run.store_path, log, names=["0.weight"])
    run, log, _ = run_of(tmp_path / "grads", mlp(), log=["backward", "grad"])
    with pytest.raises(ArgumentError, match="forward/0, were not stored"):
        influence.token_scores(run.store_path, log, names=["0.weight"])
    with pytest.raises(ArgumentError, match="in memory do not belong to a run"):
        influence.token_scores(log, log)
    with pytest.raises(ArgumentError, match="`ids` must be a sequence"):
        influence.token_scores(run.store_path, log, 3, names=["2.bias"])
    with pytest.raises(ArgumentError, match="budget"):
        influence.token_scores(run.store_path, log, [3], budget=0)


def test_other_queries(whole):
    _, run, _, _ = whole
    with pytest.raises(ArgumentError, match="same compression"):
        influence.token_scores(
            run.store_path, {"two.weight": np.ones((1, 2, 2))}, names=["two.weight"]
        )


# -- to look at -----------------------------------------------------------------------------------


def printed(table, color="truecolor"):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=color)
    console.print(table)
    return console.file.getvalue()


def test_a_table_with_colours():
    scores = np.array([[[2.0, -1.0, 0.0, 0.0], [0.0, 0.01, -2.0, 1.0]]])
    tokens = {"a": ["so ", "[b]bad[/b]\n"], 7: ["w ", "x ", "y ", "z"]}
    shown = printed(influence.token_table(scores, tokens, ["a", 7], queries=["why?"]))
    plain = printed(influence.token_table(scores[0], tokens, ["a", 7]), None)
    for word in ("so [b]bad[/b]\\n", "w x y z", "+1", "-0.99"):
        assert word in plain
    assert "why?" in shown
    assert "48;2;0;170;70mso " in shown
    assert "48;2;240;152;152m[b]bad" in shown
    assert "48;2;225;50;50my " in shown
    assert "48;2" not in shown.split("w x")[0].rsplit("7", 1)[-1]
    assert "nan" in printed(influence.token_table([np.nan, 1.0], [["a", "b"]]), None)


@pytest.mark.parametrize(
    ("scores", "tokens", "options", "said"),
    [
        ([1.0], [["a", "b"]], {}, "2 tokens, but scores of 1"),
        ([1.0, 2.0], [["a"]], {}, "later positions have scores"),
        ([[1.0], [2.0]], [["a"]], {}, "no tokens of the example 1"),
        ([[1.0]], {"x": ["a"]}, {"ids": ["y"]}, "no tokens of the example 'y'"),
        ([[1.0]], [["a"]], {"ids": ["y", "z"]}, "2 examples for scores"),
        (1.0, [["a"]], {}, "queries, examples, positions"),
    ],
)
def test_tables_that_do_not_fit(scores, tokens, options, said):
    with pytest.raises(ArgumentError, match=said):
        influence.token_table(scores, tokens, **options)


def test_calls_of_one_layer_are_numbered_as_they_come(tmp_path):
    """Inputs from the first call to the last, gradients from the last to the first."""
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 3).double(), torch.randn(6, 3).double()
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(log=["forward", "backward"], dtype="float64")
    run.watch(nn.Sequential(layer), quiet=True)
    for ids in ([0, 1, 2], [3, 4], [5]):  # proven, planned, alone
        with run(data_id=ids):
            layer(layer(x[ids]).tanh()).square().sum().backward()
    run.finalize()
    stored = sawlog.store.open(run.store_path)
    rows = stored.gather(range(6), [name for name in stored.names if "/" in name])
    one = layer(x)
    last = layer(one.tanh())
    grads = torch.autograd.grad(last.square().sum(), (last, one))
    want = {"forward/0": x, "forward/0#2": one.tanh()}
    want |= {"backward/0": grads[0], "backward/0#2": grads[1]}
    assert rows.keys() == want.keys()
    for name, each in want.items():
        np.testing.assert_allclose(rows[name], each.detach(), rtol=1e-9, atol=1e-12)
