"""Logs of a run of LogIX are unpacked, iterated and scored as programs for LogIX do it."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sawlog import logix
from sawlog.errors import ArgumentError
from sawlog.influence import Logs
from sawlog.logix import LoggingConfig, LogIX, LogIXScheduler, LoRAConfig
from tests.torch.programs import mlp

NAMES = list("abcdef")


def gradients(program):
    """The gradient of the weight of each linear module, for each example alone."""
    rows = program.alone()
    return {name: torch.as_tensor(np.float32(rows[f"{name}.weight"])) for name in ("0", "3")}


def logged(tmp_path, program, **options):
    run = LogIX("run", {"root_dir": str(tmp_path)})
    scheduler = LogIXScheduler(run, hessian="kfac", save="grad", **options)
    run.watch(program.model)
    for _ in scheduler:
        with run(data_id=NAMES):
            program.of().backward()
        run.finalize()
    return run


def assert_gradients(log, program, rows=slice(None)):
    expected = gradients(program)
    assert set(log) == set(expected)
    for module, own in log.items():
        torch.testing.assert_close(
            own["grad"].float(), expected[module][rows], rtol=1e-4, atol=1e-6
        )


def test_a_log_is_ids_and_a_dict(tmp_path):
    """Also without `eval`, and with the inputs as ids."""
    program = mlp(size=6)
    run = LogIX("run", {"root_dir": str(tmp_path)})
    run.watch(program.model)
    run.setup({"log": "grad"})
    with run(data_id=program.batch[0]) as same:
        program.of().backward()
        inside = same.get_log()
        with pytest.raises(ArgumentError, match="has not ended"):
            ids, log = inside
    ids, log = run.get_log()
    assert len(set(ids)) == 6
    assert_gradients(log, program)
    assert_gradients(inside[1], program)
    run.setup({"forward": ["covariance"], "backward": ["covariance"]})
    with run(data_id=NAMES):
        program.of().backward()
    with pytest.raises(ArgumentError, match="rows of the last batch were not kept"):
        run.get_log()


def test_setup_for_each_batch(tmp_path):
    """The same again changes nothing; others end the pass."""
    program = mlp(size=6)
    run = LogIX("run", {"root_dir": str(tmp_path)})
    run.watch(program.model)
    for part in (slice(0, 2), slice(2, 6)):
        run.setup({"log": "grad", "save": "grad", "statistic": "kfac"})
        with run(data_id=NAMES[part]):
            program.of(program.part(part)).backward()
    run.setup({"grad": ["log"]})
    assert run.statistics.examples == 6
    assert list(Logs(run.store_path).ids) == NAMES


@pytest.mark.parametrize("again", [True, False])
def test_what_was_measured_before_the_projection_is_forgotten(again, tmp_path):
    """As in LogIX: `add_lora` between two passes, of which the second measures again or not."""
    program = mlp(size=6)
    run = LogIX("run", {"root_dir": str(tmp_path), "lora": {"init": "pca", "rank": 2}})
    run.watch(program.model)
    run.setup({"log": "grad", "statistic": "kfac"})
    with run(data_id=NAMES):
        program.of().backward()
    run.finalize()
    assert run.hessian == "kfac"
    run.setup({"log": "grad", "save": "grad", **({"statistic": "kfac"} if again else {})})
    run.add_lora()
    with run(data_id=NAMES):
        program.of().backward()
    run.finalize()
    assert run.hessian == ("kfac" if again else "none")
    run.eval()
    with run(data_id=["q"]):
        program.of(program.part(slice(0, 1))).backward()
    scores = run.influence.compute_influence_all(run.get_log(), damping=0.1)
    assert scores.about["curvature"] == ("kfac" if again else "identity")


def test_inputs_that_occur_twice_as_ids(tmp_path):
    program = mlp(size=3)
    run = LogIX("run", {"root_dir": str(tmp_path)})
    run.watch(program.model)
    run.setup({"grad": ["log"]})
    run.eval()
    x, y = program.batch
    twice = (x[[0, 1, 0]], y[[0, 1, 0]])
    with run(data_id=twice[0]):
        program.of(twice).backward()
    ids, log = run.get_log()
    assert ids[2] == f"{ids[0]}#2"
    assert_gradients(log, program, [0, 1, 0])


def test_batches_of_a_loader(tmp_path):
    program = mlp(size=6)
    run = logged(tmp_path, program)
    loader = run.build_log_dataloader(batch_size=4, num_workers=1, pin_memory=True)
    flat = run.build_log_dataloader(batch_size=4, flatten=True)
    run.eval()
    with run(data_id=["q"]):
        program.of(program.part(slice(0, 1))).backward()
    query, parts = run.get_log(copy=True), []
    for place, batch in enumerate(loader):
        ids, log = batch
        assert ids == NAMES[4 * place : 4 * place + 4]
        assert_gradients(log, program, slice(4 * place, 4 * place + 4))
        parts.append(run.influence.compute_influence(query, batch, damping=0.1)["influence"])
    whole = run.influence.compute_influence_all(query, loader, damping=0.1)["influence"]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-6)
    ids, rows = next(iter(flat))
    assert rows.shape == (4, sum(each[0].numel() for each in gradients(program).values()))
    same = run.influence.compute_influence_all(query, flat, damping=0.1)["influence"]
    torch.testing.assert_close(same, whole)
    with pytest.raises(ArgumentError, match=r"A tuple of ids and a dict .*run\.get_log"):
        run.influence.compute_influence_all(tuple(query), loader)


def test_a_dataset(tmp_path):
    program = mlp(size=6)
    dataset = logged(tmp_path, program).build_log_dataset(flatten=False)
    assert len(dataset) == 6
    name, log = dataset[-1]
    assert name == "f"
    torch.testing.assert_close(log["0"]["grad"], gradients(program)["0"][5], rtol=1e-4, atol=1e-6)
    ids, batch = next(iter(DataLoader(dataset, 6)))
    assert list(ids) == NAMES
    assert_gradients(batch, program)
    assert logged(tmp_path, program).build_log_dataset(flatten=True)[0][1].dim() == 1


def test_self_influence_by_groups(tmp_path):
    program = mlp(size=6)
    run = logged(tmp_path, program)
    run.eval()
    with run(data_id=["q", "r"]):
        program.of(program.part(slice(0, 2))).backward()
    log = run.get_log()
    own = run.influence.compute_self_influence(log, damping=0.1)
    assert own["src_ids"] == ["q", "r"]
    assert isinstance(own["influence"], torch.Tensor)
    groups = run.compute_self_influence(log, influence_groups=["0", "3"], damping=0.1)["influence"]
    assert set(groups) == {"total", "0", "3"}
    torch.testing.assert_close(groups["total"], own["influence"])
    torch.testing.assert_close(groups["0"] + groups["3"], own["influence"])
    across = run.influence.compute_influence_all(log, damping=0.1)["influence"]
    torch.testing.assert_close(
        across[[0, 1], [0, 1]].double(), own["influence"], rtol=1e-4, atol=1e-6
    )


def test_configurations(tmp_path, monkeypatch):
    """`init` reads `config.yaml` of the current folder, and classes may be set later."""
    monkeypatch.chdir(tmp_path)
    assert logix.init("plain").config.lora.rank == LoRAConfig().rank
    (tmp_path / "config.yaml").write_text("root_dir: ./elsewhere\nlora:\n  rank: 3\n")
    run = logix.init(project="run")
    assert run.get_lora_config().rank == 3
    assert run.path == tmp_path / "elsewhere" / "run"
    run.set_lora_config(LoRAConfig(rank=2))
    run.set_logging_config(LoggingConfig(log_dtype="float16"))
    logix.watch(mlp().model)
    logix.add_lora()
    logix.setup({"grad": ["log"]})
    assert (run.options.compress.rank, run.options.dtype) == (2, "float16")
    assert run.get_logging_config().log_dtype == "float16"
