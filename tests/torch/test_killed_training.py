"""A program that is killed while it trains leaves rows without steps; who resumes it logs them."""

import numpy as np
import pytest
import torch
from torch import nn

import sawlog.store
from sawlog.errors import ArgumentError
from sawlog.influence import Logs, training_influence

PROGRAM = """
    import os, signal, sys
    from tests.torch.test_killed_training import train

    def kill(capture, step):
        if step == 1:
            capture._writer.flush()  # the step of the first batch, and of the second
        if step == 2:
            capture._run.flush()  # only the rows of the third batch
            os.kill(os.getpid(), signal.SIGKILL)

    train(sys.argv[1], kill, sys.argv[2] == "texts")
"""


def train(folder, after=None, texts=False):
    """Train with four batches of two, and return the capture."""
    from sawlog.torch import TrainingCapture

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, y = torch.randn(8, 3), torch.randint(0, 2, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    capture = TrainingCapture(model, "loop", root=folder, optimizer=optimizer)
    for step, ids in enumerate(torch.arange(8).split(2)):
        names = [f"text {i}" for i in ids.tolist()] if texts else ids
        with capture(names, step=step):
            nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(capture, step)
    capture.close()
    return capture


@pytest.mark.parametrize("ids", ["numbers", "texts"])
def test_rows_whose_step_was_lost(ids, forks, tmp_path):
    assert forks.start(PROGRAM, tmp_path / "killed", ids).wait(60) != 0
    path = tmp_path / "killed" / "loop"
    epoch = path / "epoch-0"
    with sawlog.store.open(epoch / "steps") as steps:
        assert len(steps.ids("step")) == 4
    logs = Logs(next((epoch / "logs").iterdir()))
    assert len(logs) == 6
    query = {"weight": np.ones((1, 2, 4))}
    with pytest.warns(UserWarning, match="2 of 6 examples of .*epoch-0 have no step"):
        cut = training_influence(path, query)
    assert len(cut.ids) == 4
    with pytest.warns(UserWarning, match="were logged before"):
        train(tmp_path / "killed", texts=ids == "texts")
    train(tmp_path / "whole", texts=ids == "texts")
    found, expected = (
        training_influence(tmp_path / name / "loop", query) for name in ("killed", "whole")
    )
    assert len(expected.ids) == 8
    assert sorted(found.ids.tolist()) == sorted(expected.ids.tolist())
    each, wanted = (dict(zip(s.ids.tolist(), s.values[0], strict=True)) for s in (found, expected))
    assert each == pytest.approx(wanted)
    assert {name: each[name] for name in cut.ids.tolist()} == pytest.approx(
        dict(zip(cut.ids.tolist(), cut.values[0], strict=True))
    )


def test_an_epoch_without_any_step(tmp_path):
    capture = train(tmp_path)
    steps = capture.path / "epoch-0" / "steps"
    sawlog.store.create(steps, exists="replace", duplicates="first").close()
    query = {"weight": np.ones((1, 2, 4))}
    with (
        pytest.warns(UserWarning, match="8 of 8 examples"),
        pytest.raises(ArgumentError, match="No step was logged"),
    ):
        training_influence(capture.path, query)
    again = train(tmp_path)
    assert again.examples == 8
    assert training_influence(capture.path, query).values.shape == (1, 8)
