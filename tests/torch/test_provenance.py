"""Logs of other weights: in the store, in statistics, in queries; always an error, or known."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
from sawlog import influence
from sawlog.errors import ArgumentError, CaptureError, WeightsMismatchError
from sawlog.run_files._provenance import Provenance, noted
from sawlog.torch._model._fingerprint import Fingerprint
from sawlog.torch._model._names import bare
from tests.torch.programs import Program, mlp
from tests.torch.test_run import go, start


def step(model):
    """What an optimizer does, without importing all that one needs."""
    torch._foreach_add_([p.detach() for p in model.parameters()], 0.01)


def trained(program, by=0.01):
    """The same program after a step of training."""
    model = copy.deepcopy(program.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)
    return Program(model, program.batch, program.loss)


# -- the fingerprint ------------------------------------------------------------------------------


def weights(model):
    return Fingerprint(model).now().weights


def test_the_same_values_have_the_same_fingerprint():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).eval()
    same = copy.deepcopy(model).to(memory_format=torch.channels_last)
    same.load_state_dict(model.state_dict())
    for parameter in same.parameters():
        parameter.requires_grad_(False)
    assert weights(same) == weights(model)
    assert weights(nn.DataParallel(model).module) == weights(bare(nn.DataParallel(model)))
    assert weights(copy.deepcopy(model).double()) != weights(model)
    assert weights(copy.deepcopy(model).bfloat16()) != weights(model)


CHANGES = {
    "in place": lambda m: m[0].weight.detach().add_(1e-3),
    "all at once": lambda m: torch._foreach_add_([p.detach() for p in m.parameters()], 1e-3),
    "through .data": lambda m: m[0].weight.data.add_(1e-3),
    "one element through .data": lambda m: m[0].bias.data[2:3].add_(1e-3),
    "through numpy": lambda m: np.add(
        m[0].weight.detach().numpy(), 1, m[0].weight.detach().numpy()
    ),
    "another .data": lambda m: setattr(m[0].weight, "data", m[0].weight.data + 1),
    "another parameter": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach() + 1)),
    "another state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "a frozen layer": lambda m: m[2].weight.data.mul_(2),
    "running statistics": lambda m: m[1].running_mean.add_(1),
    "a layer without a bias": lambda m: setattr(m[0], "bias", None),
    "another layer": lambda m: m.__setitem__(3, nn.Linear(200, 300)),
    "one more layer": lambda m: m.append(nn.Linear(3, 2)),
    "one more parameter": lambda m: m[0].register_parameter("more", nn.Parameter(torch.ones(1))),
    "the first parameter of a module": lambda m: m.register_parameter(
        "more", nn.Parameter(torch.ones(1))
    ),
    "a parameter with another name": lambda m: m[0]._parameters.update(
        more=m[0]._parameters.pop("bias")
    ),
    "swapped tensors": lambda m: torch.utils.swap_tensors(
        m[0].weight, nn.Parameter(m[0].weight.detach() + 1)
    ),
    "weights that are not shared any more": lambda m: setattr(
        m[4], "weight", nn.Parameter(m[3].weight.detach() + 1)
    ),
    "the middle of a large matrix": lambda m: m[3].weight.data[150, 77:78].add_(1e-3),
}


@pytest.mark.parametrize("how", CHANGES)
def test_any_change_is_seen(how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Linear(200, 300))
    model.append(nn.Linear(200, 300))
    model[4].weight = model[3].weight
    model[2].requires_grad_(False)
    fingerprint = Fingerprint(model)
    before = fingerprint.now()
    assert fingerprint.changed() == []
    assert fingerprint.now() == before
    assert fingerprint._quick_check.is_same()
    fingerprint._hashed_at = float("inf")  # do not compare every byte
    CHANGES[how](model)
    if how == "the middle of a large matrix":
        fingerprint._hashed_at = -float("inf")  # what no sample contains is found at intervals
    assert any(fingerprint.changed() for _ in range(3))  # frozen tensors take turns
    assert fingerprint.now().weights != before.weights


def test_writing_the_same_values_is_no_change():
    model = nn.Linear(3, 2)
    fingerprint = Fingerprint(model)
    before = fingerprint.now()
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    model.weight.data = model.weight.data.clone()
    assert fingerprint.changed() == []
    assert fingerprint.now() == before


# -- in a run -------------------------------------------------------------------------------------


def again(tmp_path, program, **options):
    run, _ = start(tmp_path, program, **options)
    return run


@pytest.mark.parametrize("options", [{}, {"statistic": "kfac", "save": []}, {"statistic": "mean"}])
def test_a_run_does_not_go_on_with_other_weights(tmp_path, options):
    program = mlp()
    run = again(tmp_path, program, **options)
    go(run, program, range(3), program.part(slice(0, 3)))
    run.finalize()
    other = trained(program)
    run = again(tmp_path, other, **options)
    with pytest.raises(
        WeightsMismatchError, match=r"5 of 5 tensors differ \(0\.weight, .*weights="
    ):
        go(run, other, range(3, 5), other.part(slice(3, 5)))
    run = again(tmp_path, program, **options)  # the first weights again: it goes on
    go(run, program, range(3, 5), program.part(slice(3, 5)))
    run.finalize()


def test_a_step_between_batches(tmp_path):
    program = mlp()
    run = again(tmp_path, program)
    go(run, program, range(2), program.part(slice(0, 2)))
    step(program.model)
    with pytest.raises(
        WeightsMismatchError, match=r"changed since this pass .*optimizer\.step\(\)"
    ):
        go(run, program, range(2, 4), program.part(slice(2, 4)))
    run.finalize()
    run.setup(weights="any")
    go(run, program, range(2, 4), program.part(slice(2, 4)))
    step(program.model)
    go(run, program, range(4, 5), program.part(slice(4, 5)))
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert [len(each.weights) for each in noted(reader)] == [32, 32, 8]
        assert noted(reader)[-1].weights == "changing"
    run.eval()
    go(run, program, ["q"], program.part(slice(0, 1)))
    with pytest.raises(WeightsMismatchError, match="several states of the model"):
        run.influence.compute_influence_all(run.get_log(), curvature="identity")
    scores = run.influence.compute_influence_all(run.get_log(), curvature="identity", weights="any")
    assert len(scores.about["weights"]["train"]) == 3


def test_queries_of_other_weights(tmp_path):
    program = mlp()
    run = again(tmp_path, program, statistic="kfac")
    go(run, program)
    run.eval()
    go(run, program, ["q"], program.part(slice(0, 1)))
    log, other = run.get_log(), trained(program)
    run.watch(other.model, quiet=True)
    go(run, other, ["r"], program.part(slice(0, 1)))
    moved = run.get_log()
    for score in (
        lambda queries, **more: influence.attribute(run.store_path, queries, **more),
        lambda queries, **more: run.influence.compute_influence(queries, queries, **more),
        lambda queries, **more: run.influence.compute_self_influence(queries, **more),
    ):
        score(log)
        with pytest.raises(WeightsMismatchError, match="5 of 5 tensors differ"):
            score(moved)
        score(moved, weights="any")
    about = influence.attribute(run.store_path, log).about["weights"]
    assert about["train"] == about["queries"] == [weights(program.model)]
    saved = influence.attribute(run.store_path, log)
    saved.save(tmp_path / "scores")
    assert influence.load_scores(tmp_path / "scores").about["weights"] == about


def test_statistics_of_other_weights(tmp_path):
    program = mlp()
    run = again(tmp_path, program, statistic="kfac", save=[])
    go(run, program)
    run.finalize()
    other = trained(program)
    run = again(tmp_path, other)
    go(run, other)
    run.eval()
    go(run, other, ["q"], other.part(slice(0, 1)))
    with pytest.raises(WeightsMismatchError, match=r"The rows at .* the statistics of K-FAC"):
        run.influence.compute_influence_all(run.get_log())
    assert len(run.influence.compute_influence_all(run.get_log(), weights="any")) == 1
    run.setup(statistic="ekfac", save=[])
    with pytest.raises(WeightsMismatchError, match="The statistics at"):
        go(run, other)


@pytest.mark.parametrize("how", [{"rank": 2, "seed": 1}, {"rank": 2, "kind": "gaussian"}])
def test_queries_in_memory_with_another_compression(tmp_path, how):
    program = mlp()
    run = again(tmp_path, program, compress=2)
    go(run, program)
    run.finalize()
    train = run.store_path
    run.setup(compress=how)
    run.eval()
    go(run, program, ["q"], program.part(slice(0, 1)))
    with pytest.raises(ArgumentError, match="their numbers mean different things"):
        influence.attribute(train, run.get_log(), curvature="identity")


def test_main_directions_that_changed(tmp_path):
    program = mlp()
    run = again(tmp_path, program, statistic="kfac", save=[])
    go(run, program, range(4), program.part(slice(0, 4)))
    run.finalize()
    run.setup(compress={"kind": "pca", "rank": 2})
    go(run, program, range(4), program.part(slice(0, 4)))
    run.finalize()
    run.setup(statistic="kfac", save=[])
    go(run, program, range(4, 5), program.part(slice(4, 5)))
    run.finalize()
    run.setup(compress={"kind": "pca", "rank": 2})
    with pytest.raises(WeightsMismatchError, match="other covariances"):
        go(run, program, range(4, 5), program.part(slice(4, 5)))
    run.eval()
    go(run, program, ["q"], program.part(slice(0, 1)))
    with pytest.raises(ArgumentError, match="different covariances"):
        run.influence.compute_influence_all(run.get_log(), curvature="identity")


def test_an_adapter_of_other_weights(tmp_path):
    program = mlp()
    for parameter in program.model[0].parameters():
        parameter.requires_grad_(False)
    run = again(tmp_path, program)
    go(run, program, range(2), program.part(slice(0, 2)))
    run.finalize()
    other = Program(copy.deepcopy(program.model), program.batch, program.loss)
    with torch.no_grad():
        other.model[0].weight.mul_(2)  # what is not watched makes other gradients as well
    run = again(tmp_path, other)
    with pytest.raises(WeightsMismatchError, match=r"1 of 5 tensors differ \(0\.weight\)"):
        go(run, other, range(2, 4), other.part(slice(2, 4)))


def test_notes_are_read_again():
    said = Provenance("abc", {"w": "1"}, "p")
    assert Provenance.from_json(said.to_json()) == said


# -- the end of a query ---------------------------------------------------------------------------


def test_a_log_is_there_after_the_with(tmp_path):
    program = mlp()
    run = again(tmp_path, program)
    run.eval()
    go(run, program, ["q"], program.part(slice(0, 1)))
    with run(data_id=["r"]):
        program.of(program.part(slice(1, 2))).backward()
        with pytest.raises(CaptureError, match="inside `with run"):
            run.get_log()
    assert list(run.get_log().ids) == ["r"]


def test_a_small_change_of_a_large_tensor_is_seen_at_once():
    """By its version: no sample has the byte, and every byte is not due."""
    layer = torch.nn.Linear(64, 64)
    fingerprint = Fingerprint(layer)
    fingerprint.now()
    assert fingerprint.changed() == []
    fingerprint._took = float("inf")
    with torch.no_grad():
        layer.weight[10, 3] += 1
    assert fingerprint.changed() == ["weight"]
    with torch.no_grad():
        layer.weight[10, 3] -= 1
    fingerprint.now()
    fingerprint._took = float("inf")
    layer.weight.data[0, 0] += 1  # counts as no change, and is in a sample
    assert fingerprint.changed() == ["weight"]
