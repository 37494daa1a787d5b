"""Second moments, mixed curvature, RelatIF and LESS against dense float64 matrices."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import sawlog.torch
from sawlog import curvature as curvatures
from sawlog import influence
from sawlog.curvature import Curvature, FullMatrix, choose_damping
from sawlog.errors import ArgumentError
from sawlog.influence import Components, Logs, attribute, less, relatif, self_influence, trackstar
from sawlog.torch._optimizer_state import adam_second_moments
from tests.influence.stores import written

RNG = np.random.default_rng(0)
N, Q = 30, 12
SHAPES = {"a": (2, 3), "b": (4,)}
TRAIN = {name: RNG.normal(size=(N, *shape)) for name, shape in SHAPES.items()}
QUERIES = {name: RNG.normal(size=(Q, *shape)) for name, shape in SHAPES.items()}
MOMENTS = {name: RNG.uniform(0.1, 4, size=shape) ** 2 for name, shape in SHAPES.items()}


def flat(rows):
    return {name: values.reshape(len(values), -1) for name, values in rows.items()}


def corrected(rows):
    return {n: v / (np.sqrt(MOMENTS[n]).ravel() + 1e-8) for n, v in flat(rows).items()}


def moment(rows):
    return rows.T @ rows / len(rows)


def products(queries, train, matrices, damping):
    """``q^T (H + d)^-1 g`` over both layers, and both squared norms."""
    pairs = ((queries, train), (queries, queries), (train, train))
    dots = [
        sum(
            one[n] @ np.linalg.solve(matrices[n] + damping * np.eye(len(matrices[n])), two[n].T)
            for n in SHAPES
        )
        for one, two in pairs
    ]
    return dots[0], np.diag(dots[1]), np.diag(dots[2])


# ---- second moments


@pytest.mark.parametrize("kind", ["fisher", "diagonal", "identity"])
@pytest.mark.parametrize("mode", ["dot", "cosine", "l2"])
def test_gradients_as_the_optimizer_applies_them(kind, mode):
    train, queries = corrected(TRAIN), corrected(QUERIES)
    dense = {
        "fisher": {n: moment(train[n]) for n in SHAPES},
        "diagonal": {n: np.diag(np.diag(moment(train[n]))) for n in SHAPES},
        "identity": {n: np.eye(train[n].shape[1]) for n in SHAPES},
    }[kind]
    damping = 0.0 if kind == "identity" else 0.2
    dot, asked, own = products(queries, train, dense, damping)
    wanted = {
        "dot": dot,
        "cosine": dot / np.sqrt(asked)[:, None] / np.sqrt(own),
        "l2": 2 * dot - asked[:, None] - own,
    }[mode]
    found = attribute(
        TRAIN, QUERIES, curvature=kind, second_moments=MOMENTS, mode=mode, damping=damping or None
    )
    np.testing.assert_allclose(found.values, wanted, rtol=1e-9)
    assert found.about["unit"] is None


def test_a_low_rank_fisher_of_corrected_gradients():
    """Fewer examples than elements: most directions are outside of the basis."""
    few, asked = {"a": TRAIN["a"][:2]}, {"a": QUERIES["a"]}
    train, queries = (corrected(each)["a"] for each in (few, asked))
    dense = moment(train) + 0.3 * np.eye(6)
    found = attribute(few, asked, curvature="fisher", second_moments=MOMENTS, damping=0.3)
    np.testing.assert_allclose(found.values, queries @ np.linalg.solve(dense, train.T), rtol=1e-9)
    norms = attribute(
        few, few, curvature="fisher", second_moments=MOMENTS, damping=0.3, mode="cosine"
    )
    np.testing.assert_allclose(np.diag(norms.values), 1.0)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_from_a_store_on_a_device_and_in_parts(tmp_path, device):
    written(tmp_path / "train", TRAIN, np.arange(N), each=7)
    options = {"curvature": "fisher", "second_moments": MOMENTS, "mode": "cosine"}
    found = attribute(tmp_path / "train", QUERIES, device=device, **options)
    again = attribute(
        tmp_path / "train", QUERIES, checkpoint=tmp_path / "parts", budget=4000, **options
    )
    wanted = attribute(TRAIN, QUERIES, **options)
    for each in (found, again):
        np.testing.assert_allclose(each.values, wanted.values, rtol=1e-6, atol=1e-9)


def test_a_corrected_curvature_is_saved(tmp_path):
    layers = curvatures.fit("fisher", lambda: iter([corrected(TRAIN)])).layers
    factors = {n: 1 / np.sqrt(MOMENTS[n]).ravel() for n in SHAPES}
    own = Curvature("fisher", {n: curvatures.Corrected(layers[n], factors[n]) for n in SHAPES})
    own.save(tmp_path / "curvature")
    loaded = curvatures.load(tmp_path / "curvature")
    for name in SHAPES:
        rows = flat(TRAIN)[name]
        np.testing.assert_array_equal(own.solve(name, rows), loaded.solve(name, rows))
    held_out = flat(QUERIES)
    plain = choose_damping(Curvature("fisher", layers), corrected(QUERIES))
    for name, value in choose_damping(own, held_out).items():
        assert value == pytest.approx(plain[name])
    with pytest.raises(ArgumentError, match="The factors have the shape"):
        curvatures.Corrected(FullMatrix(np.ones(1), np.ones((3, 1)), (3,)), np.ones(2))


def test_moments_of_adam(tmp_path):
    """In the layout of the rows that a run logs."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.97))
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    with pytest.raises(ArgumentError, match=r"no second moments of '0.weight'"):
        sawlog.torch.second_moments(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    run = sawlog.torch.Run("run", root=tmp_path)
    run.setup(dtype="float64")
    run.watch(model, quiet=True)
    with run(data_id=range(6)):
        F.cross_entropy(model(x), y).backward()
    run.finalize()
    found = sawlog.torch.second_moments(run, optimizer)
    state = (
        optimizer.state[model[0].weight]["exp_avg_sq"],
        optimizer.state[model[0].bias]["exp_avg_sq"],
    )
    wanted = torch.cat([state[0], state[1][:, None]], 1) / (1 - 0.97**3)
    np.testing.assert_allclose(found["0.weight"], wanted.numpy(), rtol=1e-6)
    scores = attribute(run.store_path, run.store_path, curvature="identity", second_moments=found)
    rows = Logs(run.store_path).whole().rows()
    scaled = np.concatenate(
        [(rows[n] / (np.sqrt(found[n]) + 1e-8)).reshape(6, -1) for n in found], 1
    )
    np.testing.assert_allclose(scores.values, scaled @ scaled.T, rtol=1e-5)


def test_moments_that_adam_divides_by():
    """The largest so far with ``amsgrad``; Adafactor has no betas and does not divide by them."""
    weight = torch.nn.Parameter(torch.ones(1))
    state = {"exp_avg_sq": torch.tensor([2.0]), "step": torch.tensor(3.0)}
    optimizer = torch.optim.Adam([weight], betas=(0.9, 0.5))
    group = optimizer.param_groups[0]
    assert adam_second_moments(state, group).item() == pytest.approx(2.0 / (1 - 0.5**3))
    largest = {**state, "max_exp_avg_sq": torch.tensor([4.0])}
    assert adam_second_moments(largest, group).item() == pytest.approx(4.0 / (1 - 0.5**3))
    assert adam_second_moments(state, {"decay_rate": -0.8}).item() == 2.0


# ---- queries' own curvature


@pytest.mark.parametrize("kind", ["fisher", "diagonal"])
@pytest.mark.parametrize("moments", [None, MOMENTS])
def test_a_share_of_the_queries_curvature(kind, moments):
    train, queries = (
        flat(each) if moments is None else corrected(each) for each in (TRAIN, QUERIES)
    )
    dense = {n: 0.7 * moment(train[n]) + 0.3 * moment(queries[n]) for n in SHAPES}
    if kind == "diagonal":
        dense = {n: np.diag(np.diag(each)) for n, each in dense.items()}
    found = attribute(TRAIN, QUERIES, curvature=kind, mix=0.3, second_moments=moments, damping=0.1)
    np.testing.assert_allclose(found.values, products(queries, train, dense, 0.1)[0], rtol=1e-9)
    plain = attribute(TRAIN, QUERIES, curvature=kind, mix=0.0, second_moments=moments, damping=0.1)
    same = attribute(TRAIN, QUERIES, curvature=kind, second_moments=moments, damping=0.1)
    np.testing.assert_allclose(plain.values, same.values)


def test_components_that_queries_have_in_common_count_less():
    """Few examples have the template of all queries, and eight have the subject of one."""
    random = np.random.default_rng(1)
    template, subjects = np.eye(20)[0], np.eye(20)[1:9]
    queries = 5 * template + subjects + 0.01 * random.normal(size=(8, 20))
    train = random.normal(size=(60, 20)) * 0.3
    train[:3] += template
    train[20:28] = subjects
    facts = {q: [20 + q] for q in range(8)}
    plain = trackstar({"w": train}, {"w": queries})
    mixed = trackstar({"w": train}, {"w": queries}, mix=Components(2))
    assert influence.recall(plain, facts, k=3).at[3] < 0.3
    assert influence.recall(mixed, facts, k=3).at[3] == 1
    ours, theirs = (np.linalg.eigvalsh(moment(each))[-2] for each in (train, queries))
    share = ours / (ours + theirs)
    by_hand = trackstar({"w": train}, {"w": queries}, mix=share)
    np.testing.assert_allclose(mixed.values, by_hand.values, rtol=1e-6)


# ---- recipes


def test_relatif_divides_by_the_root_of_self_influence():
    dense = {n: moment(flat(TRAIN)[n]) for n in SHAPES}
    dot, _, own = products(flat(QUERIES), flat(TRAIN), dense, 0.2)
    found = relatif(TRAIN, QUERIES, curvature="fisher", damping=0.2)
    np.testing.assert_allclose(found.values, dot / np.sqrt(own), rtol=1e-9)
    cosines = attribute(TRAIN, QUERIES, curvature="fisher", damping=0.2, mode="cosine")
    np.testing.assert_array_equal(found.values.argsort(1), cosines.values.argsort(1))
    best = relatif(TRAIN, QUERIES, curvature="fisher", damping=0.2, top_k=3)
    np.testing.assert_allclose(best.values, found.top(3).values)
    zero = {n: np.concatenate([v, np.zeros_like(v[:1])]) for n, v in TRAIN.items()}
    assert not relatif(zero, QUERIES, curvature="identity").values[:, -1].any()


def test_less_compares_queries_with_updates():
    updates, asked = corrected(TRAIN), flat(QUERIES)
    one = np.concatenate(list(updates.values()), 1)
    two = np.concatenate(list(asked.values()), 1)
    cosines = two @ one.T / np.linalg.norm(two, axis=1)[:, None] / np.linalg.norm(one, axis=1)
    plain = attribute(TRAIN, QUERIES, curvature="identity", mode="cosine").values
    pairs = [(TRAIN, QUERIES), (TRAIN, QUERIES)]
    found = less(pairs, [0.1, 0.3], [MOMENTS, MOMENTS])
    np.testing.assert_allclose(found.values, 0.4 * cosines, rtol=1e-6)
    np.testing.assert_allclose(less(pairs, [1.0, 2.0]).values, 3 * plain, rtol=1e-6)
    assert less(pairs, top_k=2).values.shape == (Q, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attribute(TRAIN, QUERIES, second_moments=MOMENTS), "factors of 'ekfac' are those"),
        (
            lambda: attribute(
                TRAIN, QUERIES, curvature="fisher", second_moments={"a": MOMENTS["a"]}
            ),
            "no array for the layers b; it has: a",
        ),
        (
            lambda: attribute(
                TRAIN, QUERIES, curvature="fisher", second_moments={**MOMENTS, "a": np.ones((3, 2))}
            ),
            r"'a' have the shape \[3, 2\], and its gradients \[2, 3\]",
        ),
        (
            lambda: attribute(
                TRAIN, QUERIES, curvature="fisher", second_moments={**MOMENTS, "b": -np.ones(4)}
            ),
            "negative, infinite or NaN",
        ),
        (lambda: attribute(TRAIN, QUERIES, curvature="identity", mix=0.1), "cannot be mixed"),
        (lambda: attribute(TRAIN, QUERIES, curvature="kfac", mix=0.1), "cannot be mixed"),
        (lambda: attribute(TRAIN, QUERIES, curvature="fisher", mix=1.0), "`mix` must be a share"),
        (lambda: attribute(TRAIN, QUERIES, curvature="fisher", mix=True), "`mix` must be a share"),
        (
            lambda: attribute(TRAIN, QUERIES, curvature="fisher", mix=Components(12)),
            r"12 queries, too few .* Hint: mix=Components\(1\)",
        ),
        (lambda: Components(0), "`count` must be a positive integer"),
        (
            lambda: attribute(TRAIN, QUERIES, curvature=curvatures.IDENTITY, mix=0.1),
            "need a kind of curvature to fit",
        ),
        (
            lambda: attribute(
                ensemble=[(TRAIN, QUERIES)] * 2, curvature="fisher", second_moments=MOMENTS
            ),
            "are those of one run",
        ),
        (
            lambda: attribute(
                Logs(TRAIN, meta={"options": {"compress": {"kind": "random", "rank": 2}}}),
                QUERIES,
                curvature="fisher",
                second_moments=MOMENTS,
            ),
            "the gradients are compressed",
        ),
        (lambda: less([]), "no checkpoints"),
        (lambda: less([(TRAIN, QUERIES)], [1.0, 2.0]), "1 checkpoints, 2 learning rates"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_an_ensemble_with_mixed_curvature():
    pairs = [(TRAIN, QUERIES), ({n: 2 * v for n, v in TRAIN.items()}, QUERIES)]
    each = [attribute(*pair, curvature="fisher", mix=0.2).values for pair in pairs]
    found = attribute(ensemble=pairs, curvature="fisher", mix=0.2)
    np.testing.assert_allclose(found.values, np.mean(each, 0))
    assert self_influence(TRAIN, curvature="fisher").values.shape == (N,)
    assert influence.Components(2).count == 2
