"""Mixed precision, padding, adapters, kills: the ways in which models are trained."""

import importlib
import re
import signal
import textwrap

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from sawlog.errors import ArgumentError
from sawlog.torch._layers import rule_for
from tests.sinks import _terminal as terminal
from tests.torch.oracle import Call, compare
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start


@pytest.mark.parametrize("way", ["loss.backward", "run.backward"])
def test_autocast(tmp_path, way):
    base = mlp()

    def loss(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x.float()).float(), y)

    program = Program(base.model.float(), base.batch, loss)
    run, report = start(tmp_path, program)
    go(run, program, way=way)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone(), rtol=0.03, atol=0.003)


def test_a_scaled_loss_is_logged_unscaled(tmp_path):
    program = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run, report = start(
        tmp_path, program, log=["grad", "backward"], statistic="kfac", precision="float64"
    )
    with run(data_id=range(5), scaler=scaler):
        scaler.scale(program.of()).backward()
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())
    with sawlog.store.open(run.store_path) as reader:
        outputs = np.asarray(reader.gather(range(5))["backward/3"], np.float64)
    np.testing.assert_allclose(
        run.statistics.kfac("3.weight")[0], outputs.T @ outputs / 5, rtol=1e-4, atol=1e-9
    )


def test_eval_mode_and_batch_norm(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    base = mlp()
    program = Program(model.double().eval(), base.batch, base.loss)
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())
    model.train()
    other = sawlog.init(project="other", root=tmp_path)
    other.watch(model.eval(), quiet=True)
    model.train()
    with pytest.raises(ArgumentError, match="eval"):
        go(other, program)
    other.finalize()


def test_padded_sequences(tmp_path):
    """Each example alone, without its padding, has the same gradients."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(10, 8), layer, nn.Linear(8, 1)).double()
    lengths = torch.tensor([6, 3, 1, 4])
    x = torch.randint(0, 10, (4, 6))
    mask = torch.arange(6) < lengths[:, None]

    def loss(model, x, mask):
        h = model[1](model[0](x), src_key_padding_mask=~mask)
        return ((model[2](h)[..., 0] ** 2) * mask).sum()

    program = Program(model, (x, mask), loss)
    run, report = start(tmp_path, program)
    go(run, program, mask=mask)
    run.finalize()
    names = [name for name, _ in model.named_parameters()]
    alone = []
    for i, length in enumerate(lengths):
        one = (x[i : i + 1, :length], mask[i : i + 1, :length])
        alone.append(torch.autograd.grad(loss(model, *one), list(model.parameters())))
    expected = {
        n: np.stack([r.numpy() for r in rows])
        for n, rows in zip(names, zip(*alone, strict=True), strict=True)
    }
    assert_alike(logged(run, report, range(4)), expected, rtol=1e-4, atol=1e-5)


def test_lora(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    config = peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
    model = peft.get_peft_model(model, config).double()
    base = mlp()
    program = Program(model, base.batch, base.loss)
    run, report = start(tmp_path, program)
    assert len(report.blocks) == 4
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, n_positions=6, vocab_size=12, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    x = torch.randint(0, 12, (3, 6))
    program = Program(model, (x,), lambda model, x: model(input_ids=x, labels=x).loss)
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    found, expected = logged(run, report, range(3)), program.alone()
    assert set(found) == set(expected)  # the tied head is there under one name
    assert_alike(found, expected)
    plain = torch.autograd.grad(program.of(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad, gradient)


NORMS = ["gemma", "gemma2", "gemma3", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2",
         "qwen3", "t5"]  # fmt: skip


@pytest.mark.parametrize("model", NORMS)
def test_norms_of_transformers(tmp_path, model):
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    (kind,) = {
        value for name, value in vars(module).items()
        if re.fullmatch(rf"{model}(RMSNorm|LayerNorm)", name, re.IGNORECASE)
    }  # fmt: skip
    torch.manual_seed(0)
    norm = kind(5, eps=0.3).double()
    nn.init.normal_(norm.weight)
    compare(rule_for(norm), Call(norm, (torch.randn(3, 4, 5).double(),)), rtol=1e-5)
    batch = (torch.randn(3, 4, 5).double(), torch.randn(3, 4, 5).double())
    program = Program(norm, batch, lambda model, x, w: (model(x) * w).sum())
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(3)), program.alone(), rtol=1e-4)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.place, self.out = nn.Embedding(5, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.out(x + self.place(torch.arange(x.shape[1])))


@pytest.mark.parametrize("examples", [5, 4, 2])
def test_positions_without_examples(tmp_path, examples):
    batch = (torch.randn(examples, 4, 3).double(),)
    program = Program(Positions().double(), batch, lambda model, x: model(x).sum())
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(examples)), program.alone())


# -- kill it, run it again ------------------------------------------------------------------------

PROGRAM = """
    import os, signal, sys
    import numpy as np, torch, sawlog
    from tests.torch.programs import mlp
    folder, stop = sys.argv[1], int(sys.argv[2])
    program = mlp(size=40)
    run = sawlog.init(project="run", root=folder)
    run.setup(statistic=["kfac", "mean"], precision="float64", interval=1e-9)
    run.watch(program.model, quiet=True)
    seen = []
    loader = [program.part(slice(at, at + 4)) for at in range(0, 40, 4)]
    for ids, batch in run.batches(loader):
        if len(seen) == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(ids[0])
        with run(data_id=ids):
            run.backward(program.of(batch))
    run.finalize()
    print(seen)
"""


@pytest.mark.thorough
def test_killed_and_run_again(tmp_path, forks):
    for stop in (4, 3):
        assert forks.start(PROGRAM, tmp_path, stop).wait(300) == -signal.SIGKILL
    ended = forks.start(PROGRAM, tmp_path, 100)
    assert ended.wait(300) == 0, ended.output()
    assert "[28, 32, 36]" in ended.output().replace("np.int64(", "").replace(")", "")
    program = mlp(size=40)
    run, report = start(tmp_path, program, statistic=["kfac", "mean"], precision="float64")
    assert_alike(logged(run, report, range(40)), program.alone())
    fresh, _ = start(tmp_path / "fresh", program, statistic=["kfac", "mean"], precision="float64")
    go(fresh, program, np.arange(40))
    fresh.finalize()
    for one, two in zip(
        run.statistics.kfac("0.weight"), fresh.statistics.kfac("0.weight"), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-9)
    np.testing.assert_allclose(
        run.statistics.mean("grad/0.weight"), fresh.statistics.mean("grad/0.weight"), rtol=1e-6
    )


def test_a_batch_that_is_stored_in_part(tmp_path):
    program = mlp(size=6)
    run, report = start(tmp_path, program, statistic="kfac", precision="float64")
    go(run, program, np.arange(3), program.part(slice(0, 3)))
    run.finalize()
    again, _ = start(tmp_path, program, statistic="kfac", precision="float64")
    assert again.missing(range(6)).tolist() == [3, 4, 5]
    go(again, program, np.arange(6))
    again.finalize()
    assert_alike(logged(again, report, range(6)), program.alone())
    fresh, _ = start(tmp_path / "fresh", program, statistic="kfac", precision="float64")
    go(fresh, program, np.arange(6))
    fresh.finalize()
    for one, two in zip(
        again.statistics.kfac("0.weight"), fresh.statistics.kfac("0.weight"), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-9)


def test_other_options_or_layers_are_refused(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program)
    go(run, program)
    run.finalize()
    other, _ = start(tmp_path, program, reduction="mean")
    with pytest.raises(ArgumentError, match="reduction was 'auto', now 'mean'"):
        go(other, program)
    third, _ = start(tmp_path, program, {"names": "0"})
    with pytest.raises(ArgumentError, match="other layers"):
        go(third, program)
    with pytest.raises(ArgumentError, match="exists='replace'"):
        sawlog.init(project="run", root=tmp_path, exists="error")
    fourth = sawlog.init(project="run", root=tmp_path, exists="replace")
    fourth.watch(program.model, quiet=True)
    go(fourth, program)
    fourth.finalize()


@pytest.mark.thorough
def test_progress_at_a_terminal(tmp_path):
    seen = terminal.run(
        textwrap.dedent(f"""
            import time, torch, sawlog
            model = torch.nn.Linear(3, 2)
            run = sawlog.init(project="digits", root={str(tmp_path)!r})
            run.watch(model)
            for ids, batch in run.batches(torch.randn(30, 3).split(10)):
                with run(data_id=ids):
                    model(batch).sum().backward()
                time.sleep(0.15)
            run.finalize()
        """)
    )
    assert seen.code == 0, seen.text
    assert "weight + bias" in seen.text
    assert re.search(r"logging digits .* 3/3 batches .*examples/s, .*MB", seen.text)


@pytest.mark.parametrize("way", ["loss.backward", "run.backward"])
def test_activations_in_place(tmp_path, way):
    base = mlp()
    model = nn.Sequential(
        nn.Linear(4, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 3),
    ).double()
    program = Program(model, base.batch, base.loss)
    run, report = start(tmp_path, program)
    go(run, program, way=way)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())
