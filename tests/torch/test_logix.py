"""Programs written for LogIX work, or are told our words for it; runs are reopened."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import sawlog
from sawlog import influence
from sawlog.errors import ArgumentError, CaptureError, WeightsMismatchError
from sawlog.influence import Logs
from sawlog.logix import DataIDGenerator, LogIX, LogIXScheduler, merge_logs
from sawlog.run_files._options import read
from tests.torch.programs import assert_alike, logged, mlp
from tests.torch.test_provenance import trained
from tests.torch.test_run import go, start


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"grad": ["log"]}, {"log": "grad"}),
        (
            {"grad": ["log", "covariance"]},
            {"log": "grad", "save": "grad", "statistic": "covariance"},
        ),
        (
            {"forward": ["covariance"]},
            {"log": "forward", "save": [], "statistic": "covariance"},
        ),
        (
            {"forward": ["covariance"], "backward": ["covariance"]},
            {"log": "grad", "save": [], "statistic": "kfac"},
        ),
        (
            {"forward": ["log", "covariance"], "backward": ["covariance"], "grad": ["log"]},
            {"log": ["forward", "grad"], "save": ["forward", "grad"], "statistic": "kfac"},
        ),
        (
            {"grad": ["log", "corrected_eigval"]},
            {"log": "grad", "save": "grad", "statistic": "ekfac"},
        ),
        ({"forward": ["log"], "dtype": "bfloat16"}, {"log": "forward", "dtype": "bfloat16"}),
    ],
)
def test_setup(theirs, ours):
    before = repr(theirs)
    one, other = read(theirs), read(ours)
    assert repr(theirs) == before
    assert (one.log, one.saved, one.statistic) == (other.log, other.saved, other.statistic)
    assert one.dtype == other.dtype


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grad": ["logs"]}, r"`grad` must be a list of 'log', 'mean'.*got 'logs'"),
        (
            {"forward": ["mean"], "grad": ["log"]},
            r"different statistics for different logs.*statistic=",
        ),
        ({"root_dir": "x"}, r"instead of 'root_dir': sawlog\.init\(project, root="),
        ({"logging": {}, "lora": {"rank": 2}}, r"'logging': .*; instead of 'lora': compress="),
        ({"log_dtype": "bfloat16"}, r"instead of 'log_dtype': dtype"),
        ({"flush_threshold": 3}, r"instead of 'flush_threshold': interval"),
        ({"hessian": "raw"}, r"curvature='ekfac' or 'fisher'"),
    ],
)
def test_what_has_no_counterpart_is_named(given, message):
    with pytest.raises(ArgumentError, match=message):
        read(given)


def test_a_yaml_file(tmp_path):
    text = f"root_dir: {tmp_path}\nlogging:\n  log_dtype: bfloat16\nlora:\n  rank: 3\n"
    (tmp_path / "config.yaml").write_text(text)
    run = sawlog.init("run", config=tmp_path / "config.yaml")
    assert isinstance(run, LogIX)
    assert run.path == tmp_path / "run"
    run.watch(mlp().model)
    run.add_lora()
    run.setup({"grad": ["log"]})
    assert (run.options.dtype, run.options.compress.rank) == ("bfloat16", 3)
    (tmp_path / "config.yaml").write_text("")
    assert isinstance(sawlog.init("run", config=str(tmp_path / "config.yaml")), LogIX)
    assert not isinstance(sawlog.init("run", root=tmp_path, config={}), LogIX)
    with pytest.raises(ArgumentError, match="has no key 'ranks'"):
        LogIX("run", {"lora": {"ranks": 3}})
    with pytest.raises(ArgumentError, match=r"other\.yaml does not exist"):
        LogIX("run", tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("lora", "hessian", "passes", "curvature"),
    [
        ("none", "none", 1, "identity"),
        ("random", "raw", 1, "fisher"),
        ("none", "kfac", 1, "kfac"),
        ("pca", "ekfac", 3, "ekfac"),
        ("pca", "none", 2, "identity"),
    ],
)
def test_a_program_with_a_scheduler(lora, hessian, passes, curvature, tmp_path):
    """In the order of LogIX's examples: queries are read inside of their `with`."""
    program = mlp(size=6)
    settings = {"root_dir": str(tmp_path), "lora": {"rank": 2}}
    run, name = LogIX("run", settings), DataIDGenerator()
    scheduler = LogIXScheduler(run, lora=lora, hessian=hessian, save="grad")
    run.watch(program.model)
    seen = []
    for epoch in scheduler:
        seen.append(epoch)
        with run(data_id=name(program.batch[0])):
            program.of().backward()
        run.finalize()
    assert seen == list(range(passes))
    loader = run.build_log_dataloader(batch_size=4, flatten=True)
    run.eval()
    run.setup({"grad": ["log"]})
    with run(data_id=name(program.batch[0][:2])):
        program.of(program.part(slice(0, 2))).backward()
        log = run.get_log()
        with pytest.raises(ArgumentError, match="has not ended"):
            run.compute_influence_all(log)
    found = run.influence.compute_influence_all(log, loader, damping=0.1, save=True)
    assert found.about["curvature"] == curvature
    assert isinstance(found["influence"], torch.Tensor)
    plain = influence.attribute(run.store_path, run.get_log(), curvature=curvature, damping=0.1)
    np.testing.assert_allclose(found["influence"], plain.values, rtol=1e-6)
    assert found["src_ids"] == name(program.batch[0][:2])
    groups = run.compute_influence_all(influence_groups=["0", "3"], damping=0.1)["influence"]
    np.testing.assert_allclose(groups["total"], groups["0"] + groups["3"], rtol=1e-4, atol=1e-6)
    twice = run.influence.get_influence_scores()["influence"]
    np.testing.assert_array_equal(twice, found["influence"])
    assert len(Logs(run.store_path)) == 6  # queries are not stored
    again = LogIX("run", settings)
    again.watch(program.model)
    again.initialize_from_log()
    again.eval()
    with again(data_id=["q"]):
        program.of(program.part(slice(0, 1))).backward()
    merged = merge_logs([copy.deepcopy(again.get_log())])
    scores = again.influence.compute_influence_all(merged, damping=0.1)
    np.testing.assert_allclose(scores["influence"][0], found["influence"][0], rtol=1e-4, atol=1e-6)


def test_an_id_that_occurs_again(tmp_path):
    program = mlp(size=4)
    run = LogIX("run", {"root_dir": str(tmp_path)})
    run.watch(program.model)
    run.setup({"grad": ["log"]})
    for own in (slice(0, 2), slice(2, 4)):
        with run(data_id=["same", "same"]):
            program.of(program.part(own)).backward()
    run.finalize()
    assert list(Logs(run.store_path).ids) == ["same", "same#2", "same#3", "same#4"]
    with pytest.raises(ArgumentError, match="no logs at"):
        LogIX("other", {"root_dir": str(tmp_path)}).initialize_from_log()
    with pytest.raises(ArgumentError, match="needs a run of LogIX"):
        LogIXScheduler(sawlog.init("plain", root=tmp_path))


def test_a_program_of_logix(tmp_path):
    program = mlp(size=6)
    run = sawlog.init(project="run", root=tmp_path)
    report = run.watch(program.model, type_filter=[nn.Linear], name_filter=["3"], quiet=True)
    assert [block.name for block in report.blocks] == ["3.weight"]
    report = run.watch(program.model, quiet=True)
    run.setup({"grad": ["log"]})
    run.save(True)
    sawlog.start([0, 1, 2])
    program.of(program.part(slice(0, 3))).backward()
    sawlog.end()
    run.start(data_id=[3, 4, 5])
    program.of(program.part(slice(3, 6))).backward()
    run.end()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())
    dataset = sawlog.build_log_dataset()
    assert len(dataset) == 6
    assert dataset[2]["id"] == 2
    assert next(iter(DataLoader(dataset, 4)))["grad/0.weight"].shape == (4, 6, 5)
    loader = sawlog.build_log_dataloader(batch_size=4, num_workers=0)
    run.eval()
    go(run, program, ["influence", "b"], program.part(slice(0, 2)))
    scores = run.influence.compute_influence_all(
        src_log=run.get_log(), loader=loader, precondition=False
    )
    same = run.influence.compute_influence_all(run.get_log(), hessian="none")
    np.testing.assert_array_equal(scores.values, same.values)
    assert scores["src_ids"].tolist() == ["influence", "b"]
    assert scores["tgt_ids"].tolist() == list(range(6))
    assert scores["influence"] == list(zip(range(6), scores.values[0].tolist(), strict=True))
    np.testing.assert_array_equal(scores.select(["b"])["influence"], scores.values[1:])
    own = run.influence.compute_self_influence(run.get_log(), precondition=False)
    assert own["src_ids"].tolist() == ["influence", "b"]
    np.testing.assert_array_equal(own["influence"], own.values)
    with pytest.raises(ArgumentError, match="per_layer=True"):
        run.influence.compute_influence_all(run.get_log(), influence_groups=["a"])


def test_start_and_end(tmp_path):
    program = mlp()
    run, report = start(tmp_path, program)
    with pytest.raises(CaptureError, match="without a start"):
        run.end()
    run.start(range(5))
    with pytest.raises(CaptureError, match=r"start was called twice|being logged already"):
        run.start(range(5))
    program.of().backward()
    run.clear()  # gives the batch up
    assert not any(module._forward_hooks for module in program.model.modules())
    with pytest.raises(ArgumentError, match=r"run\.watch"):
        go(run, program)
    run.watch(program.model, quiet=True)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())


def test_methods_that_are_called_otherwise(tmp_path):
    run = sawlog.init(project="run", root=tmp_path)
    with pytest.raises(
        AttributeError, match=r"no attribute 'add_lora'\. Hint: run\.setup\(compress"
    ):
        run.add_lora()
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        run.nonsense()


# -- best of the best -----------------------------------------------------------------------------


def test_the_best_of_the_best():
    rows = {"w": np.array([[1.0], [5.0], [3.0], [-4.0], [2.0], [0.0]])}
    scores = influence.attribute(
        rows, {"w": [[1.0], [-1.0]]}, curvature="identity", top_k=5, per_layer=True
    )
    assert scores.top(3).ids.tolist() == [[1, 2, 4], [3, 5, 0]]
    assert scores.top(3).layers["w"].tolist() == scores.top(3).values.tolist()
    assert scores.top(5).ids.tolist() == scores.ids.tolist()
    assert scores.top(3).about["top_k"] == 3
    with pytest.raises(ArgumentError, match="the best 6 positive ones are not known"):
        scores.top(6)
    with pytest.raises(ArgumentError, match="the best 2 negative ones are not known"):
        scores.top(2, "negative")
    everything = influence.attribute(rows, {"w": [[1.0]]}, curvature="identity", top_k=50)
    assert everything.top(10).ids.shape == (1, 6)


# -- joined queries -------------------------------------------------------------------------------


def test_queries_are_joined(tmp_path):
    program = mlp(size=6)
    run, _ = start(tmp_path, program, log=["forward", "grad"], save="grad")
    go(run, program)
    run.eval()
    logs = []
    for own in (slice(0, 2), slice(2, 3), slice(3, 6)):
        go(run, program, [f"q{i}" for i in range(6)[own]], program.part(own))
        logs.append(run.get_log())
    joined = influence.Logs.join(logs)
    assert list(joined.ids) == [f"q{i}" for i in range(6)]
    assert list((logs[0] + logs[1]).ids) == ["q0", "q1", "q2"]
    scores = run.influence.compute_influence_all(joined, curvature="identity")
    grads = np.concatenate([each.reshape(6, -1) for each in program.alone().values()], 1)
    np.testing.assert_allclose(scores.values, grads @ grads.T, rtol=1e-4, atol=1e-7)
    forward = influence.Logs(joined, names=["forward/0"]).whole().columns["forward/0"].rows()
    np.testing.assert_allclose(forward[..., 0], program.batch[0].numpy(), rtol=1e-6)
    with pytest.raises(ArgumentError, match="same id"):
        logs[0] + logs[0]
    run.watch(trained(program).model, quiet=True)
    other = trained(program)
    run.watch(other.model, quiet=True)
    go(run, other, ["z"], other.part(slice(0, 1)))
    with pytest.raises(WeightsMismatchError, match="5 of 5 tensors differ"):
        logs[0] + run.get_log()
    with pytest.raises(ArgumentError, match="cannot be joined"):
        logs[0] + influence.Logs(run.store_path)


# -- reopened -------------------------------------------------------------------------------------


def test_a_run_is_reopened_without_its_options(tmp_path):
    program = mlp(size=6)
    options = {"compress": {"rank": 2, "seed": 4}, "dtype": "bfloat16", "statistic": "kfac"}
    run, _ = start(tmp_path, program, **options)
    go(run, program)
    run.finalize()
    again = sawlog.init(project="run", root=tmp_path)
    assert again.options == run.options
    assert again.store_path == run.store_path
    left, _ = again.statistics.kfac("0.weight")  # without a model
    np.testing.assert_array_equal(left, run.statistics.kfac("0.weight")[0])
    again.watch(program.model, quiet=True)
    again.eval()
    go(again, program, ["q"], program.part(slice(0, 1)))
    scores = again.influence.compute_influence_all(again.get_log())
    assert scores.values.shape == (1, 6)
    assert sawlog.init(project="run", root=tmp_path, config={"log": "forward"}).options.log == (
        "forward",
    )
    assert sawlog.init(project="run", root=tmp_path, exists="replace").options == read()


def test_extract_is_remembered_by_what_was_asked_for(tmp_path):
    program = mlp(size=4)
    run, _ = start(tmp_path, program, statistic="ekfac", compress={"kind": "pca", "rank": 2})

    def step(model, batch):
        return program.loss(model, *batch)

    loader = DataLoader(list(zip(*program.batch, strict=True)), 2)
    run.extract(step, loader, quiet=True)
    again = sawlog.init(project="run", root=tmp_path)
    assert again.options == run.options
    with torch.no_grad():
        assert len(influence.Logs(again.store_path)) == 4


def test_logs_is_the_old_name_of_store_path(tmp_path):
    run = sawlog.init(project="run", root=tmp_path)
    with pytest.warns(DeprecationWarning, match=r"run\.store_path"):
        assert run.logs == run.store_path


def test_reading_influence_does_not_end_the_pass(tmp_path):
    model = nn.Linear(3, 2)
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)
    with run(data_id=[0, 1]):
        own = run.influence  # a property that finalized would raise here
        model(torch.ones(2, 3)).sum().backward()
    with run(data_id=[2]):  # the pass goes on, and its ids with it
        model(torch.ones(1, 3)).sum().backward()
    assert len(own.compute_self_influence(hessian="none").values) == 3


def test_scores_are_a_tensor_for_functions_of_pytorch(tmp_path):
    """As programs for earlier versions of LogIX use them."""
    program = mlp(size=6)
    run = LogIX("run", {"root_dir": str(tmp_path)})
    run.watch(program.model)
    run.setup({"log": "grad", "save": "grad"})
    with run(data_id=list("abcdef")):
        program.of().backward()
    run.finalize()
    run.eval()
    with run(data_id=["q"]):
        program.of(program.part(slice(0, 1))).backward()
    scores = run.influence.compute_influence_all(run.get_log(), hessian="none")
    values, places = torch.topk(scores, k=2)
    np.testing.assert_array_equal(values, np.sort(scores.values)[:, :-3:-1])
    assert places.numpy().tolist() == np.argsort(-scores.values)[:, :2].tolist()
    assert scores.numpy().tolist() == scores["influence"].cpu().numpy().tolist()
    for again in (copy.copy(scores), copy.deepcopy(scores)):
        assert type(again) is type(scores)
        assert again["q"] == scores["q"]
    torch.save((scores, run.influence.compute_self_influence(hessian="none")), tmp_path / "scores")
    saved, own = torch.load(tmp_path / "scores", weights_only=True)  # the default
    assert {*saved} == {"src_ids", "tgt_ids", "influence"}
    assert {*own} == {"src_ids", "influence"}
    assert (saved["src_ids"], saved["tgt_ids"]) == (["q"], list("abcdef"))
    assert own["src_ids"] == list("abcdef")
    np.testing.assert_array_equal(saved["influence"], scores.values)
    assert own["influence"].shape == (6,)
