"""Compiled modules stay compiled while they are captured, and give the rows of batches of one.

By default most tests run what is traced as it is, which is fast, and one lets AOTAutograd trace
the backward pass as well. The thorough tests compile by inductor.
"""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from sawlog.errors import ArgumentError, CaptureError, CompiledModelWarning
from tests.thorough import THOROUGH
from tests.torch.programs import Program, assert_alike, language, logged, mlp
from tests.torch.test_run import assert_clean, start

BACKEND = "inductor" if THOROUGH else "eager"
slow = pytest.mark.skipif(not THOROUGH, reason="compiles a model, which takes seconds")


class Block(nn.Module):
    def __init__(self, drop=0.0, shared=None):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.drop = nn.Dropout(drop)
        self.checkpoints = False

    def forward(self, h):
        if self.checkpoints:
            return checkpoint(self.inside, h, use_reentrant=False)
        return self.inside(h)

    def inside(self, h):
        return h + self.down(self.drop(torch.tanh(self.up(self.norm(h)))))


class Stack(nn.Module):
    """Two blocks; maybe a parameter that is used outside of its layer, and the loss."""

    def __init__(self, own=False, loss=False, drop=0.0, norm=False):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList([Block(drop), Block(drop)])
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.own, self.loss = own, loss

    def forward(self, x, y=None):
        h = self.norm(self.first(x))
        h = h * self.first.bias if self.own else h
        for block in self.blocks:
            h = block(h)
        logits = self.last(h)
        return F.cross_entropy(logits, y) if self.loss else logits


def stack(**options):
    torch.manual_seed(0)
    base = mlp()
    loss = (lambda model, x, y: model(x, y)) if options.get("loss") else base.loss
    return Program(Stack(**options).double(), base.batch, loss)


def log_three_times(run, program, batches=3, way=lambda run, loss: loss.backward(), first=0):
    """Log the same batch under new ids; return which batches ran compiled."""
    compiled = []
    for number in range(first, first + batches):
        program.model.zero_grad()
        with run(data_id=np.arange(program.size) + 100 * number):
            regions = run._batch._hooks.regions
            way(run, program.of())
        compiled.append(regions is not None and regions.ran_compiled)
    return compiled


def check(tmp_path, program, expected, *, compiled, names=None, way=None, said=(), **options):
    """Rows of every batch are those of examples alone; ``compiled`` says which batches were."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", CompiledModelWarning)
        run, report = start(tmp_path, program, **options)
        found = log_three_times(run, program, **({} if way is None else {"way": way}))
    assert [str(each.message).partition("`: ")[2] for each in seen] == list(said)
    assert found == compiled
    run.finalize()
    regions = run._backend.watched.regions
    assert names is None or [region.name for region in regions.regions] == names
    for number in range(len(found)):
        ids = np.arange(program.size) + 100 * number
        assert_alike(logged(run, report, ids), expected)
    assert_clean(program.model)
    return run


LATER = [False, True, True]  # the first batch runs as it is written


@pytest.mark.parametrize("backend", [BACKEND, "aot_eager"])
def test_a_model(backend, tmp_path):
    program = stack() if THOROUGH else mlp()
    expected, plain = program.alone(), program.model
    program.of().backward()
    grads = [p.grad.clone() for p in plain.parameters()]
    program.model = torch.compile(plain, backend=backend)
    if THOROUGH:
        program.of().backward()  # it was compiled before it is watched
    check(tmp_path, program, expected, compiled=LATER, names=[type(plain).__name__])
    for grad, p in zip(grads, plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, grad)
    assert "_compiled_call_impl" not in plain.__dict__
    assert not any(module._forward_hooks for module in plain.modules())


@slow
def test_tied_weights_and_a_layer_that_is_called_twice(tmp_path):
    program = language()
    expected, program.model = program.alone(), torch.compile(program.model, backend=BACKEND)
    check(tmp_path, program, expected, compiled=LATER, names=["Language"])


@slow
def test_statistics_forward_and_backward_logs(tmp_path):
    program = mlp()
    expected, plain = program.alone(), program.model
    program.model = torch.compile(plain, backend=BACKEND)
    log = ["forward", "backward", "grad"]

    def way(run, loss):
        loss.backward()

    run = check(tmp_path, program, expected, compiled=LATER, way=way, log=log, statistic="kfac")
    other = mlp()
    with_eager, _ = start(tmp_path / "eager", other, log=log, statistic="kfac")
    log_three_times(with_eager, other, way=way)
    with_eager.finalize()
    stores = [torch_store(each) for each in (run, with_eager)]
    assert stores[0].keys() == stores[1].keys()
    for name, rows in stores[0].items():
        np.testing.assert_allclose(rows, stores[1][name], rtol=1e-9, atol=1e-12, err_msg=name)
    for one, other in zip(
        *(each.statistics.kfac("0.weight") for each in (run, with_eager)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def torch_store(run):
    import sawlog.store

    with sawlog.store.open(run.store_path) as reader:
        return reader.gather(np.arange(5) + 200)


def test_extract_computes_only_what_logs_need(tmp_path):
    """Three passes, each of which is proven as written; then weights have no gradients."""
    program = stack() if THOROUGH else mlp()
    expected, plain = program.alone(), program.model
    model = torch.compile(plain, backend=BACKEND if THOROUGH else "aot_eager")
    run, report = start(tmp_path, Program(model, None, None), statistic="ekfac")
    seen = []

    def step(model, ids):
        seen.append(run._batch._hooks.regions)
        batch = tuple(each[ids % 5] for each in program.batch)
        return program.loss(model, *batch)

    ids = torch.arange(20)
    assert run.extract(step, ids.split(5), check=False, quiet=True).examples == (20, 20)
    assert [each.ran_light for each in seen] == [False, True, True, True] * 2
    assert all(p.requires_grad and p.grad is None for p in plain.parameters())
    for first in range(0, 20, 5):
        assert_alike(logged(run, report, ids[first : first + 5].numpy()), expected)
    left, _ = run.statistics.kfac("0.weight" if not THOROUGH else "first.weight")
    other = program.model[0] if not THOROUGH else program.model.first
    bias = expected["0.bias" if not THOROUGH else "first.bias"]
    assert other.out_features == len(left)
    np.testing.assert_allclose(left, bias.T @ bias / 5, rtol=1e-5, atol=1e-9)


def test_a_backward_pass_in_a_step_is_refused(tmp_path):
    program = mlp()
    model = torch.compile(program.model, backend=BACKEND)
    run, _ = start(tmp_path, Program(model, None, None))
    calls = []

    def step(model, ids):
        calls.append(ids)
        loss = program.loss(model, *(each[ids % 5] for each in program.batch))
        if len(calls) > 1:
            loss.backward(retain_graph=True)
        return loss

    with pytest.raises(CaptureError, match=r"A step of .* called backward"):
        run.extract(step, torch.arange(15).split(5), check=False, quiet=True)


@slow
def test_parts_of_a_model(tmp_path):
    """Modules that are compiled in place, among others that are not."""
    program = stack()
    expected = program.alone()
    for block in program.model.blocks:
        block.compile(backend=BACKEND)
    before = [block._compiled_call_impl for block in program.model.blocks]
    check(tmp_path, program, expected, compiled=LATER, names=["blocks.0", "blocks.1"])
    assert [block._compiled_call_impl for block in program.model.blocks] == before


SPLIT = {
    "loss": (
        {"loss": True},
        "it computes the loss, whose graph would be hidden. 2 modules in it stay compiled.",
    ),
    "own parameter": (
        {"own": True},
        "the parameter first.weight is used outside of the layers that have rules. "
        "2 modules in it stay compiled.",
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_where_a_model_cannot_its_modules_stay_compiled(name, tmp_path):
    options, reason = SPLIT[name]
    program = stack(**options)
    expected, program.model = program.alone(), torch.compile(program.model, backend=BACKEND)
    check(
        tmp_path,
        program,
        expected,
        compiled=[False, False, True],
        names=["blocks.0", "blocks.1"],
        said=[reason],
    )


def test_checkpointed_modules_run_as_written(tmp_path):
    program = stack()
    for block in program.model.blocks:
        block.checkpoints = True
    expected, program.model = program.alone(), torch.compile(program.model, backend=BACKEND)
    checkpointed = "it is checkpointed, and would be computed again outside of compiled code"
    run = check(
        tmp_path,
        program,
        expected,
        compiled=[False] * 3,
        said=[f"{checkpointed}. 2 modules in it stay compiled.", *[f"{checkpointed}."] * 2],
    )
    assert not run._backend.watched.regions


@slow
def test_dropout_has_the_random_numbers_of_the_model_as_written(tmp_path):
    program, other = stack(drop=0.5), stack(drop=0.5)
    program.model = torch.compile(program.model, backend=BACKEND)
    found = []
    for each in (program, other):
        run, report = start(tmp_path / str(len(found)), each)
        torch.manual_seed(3)
        compiled = log_three_times(run, each)
        run.finalize()
        found.append((compiled, logged(run, report, np.arange(5) + 200), torch.rand(1)))
    assert found[0][0] == LATER
    assert found[1][0] == [False] * 3
    assert_alike(found[0][1], found[1][1])
    assert torch.equal(found[0][2], found[1][2])


@slow
def test_other_shapes_and_modes(tmp_path):
    program = stack()
    expected, plain = program.alone(), program.model
    program.model = torch.compile(plain, backend=BACKEND)
    run, report = start(tmp_path, program)
    sizes, compiled = (5, 4, 5, 4, 5, 3, 3), []
    for number, size in enumerate(sizes):
        with run(data_id=np.arange(size) + 100 * number):
            with torch.no_grad():
                program.of()  # which is not captured
            program.of(program.part(slice(size))).backward()
            compiled.append(run._batch._hooks.regions.ran_compiled)
    assert compiled == [False, False, True, True, True, False, True]
    run.finalize()
    for number, size in enumerate(sizes):
        rows = logged(run, report, np.arange(size) + 100 * number)
        assert_alike(rows, {name: each[:size] for name, each in expected.items()})


@slow
def test_gradients_of_chosen_tensors(tmp_path):
    program = stack()
    expected, plain = program.alone(), program.model
    program.model = torch.compile(plain, backend=BACKEND)
    chosen = [plain.last.weight, plain.last.bias]
    check(
        tmp_path,
        program,
        {name: rows * name.startswith("last.") for name, rows in expected.items()},
        compiled=LATER,
        way=lambda run, loss: loss.backward(inputs=chosen),
    )
    assert plain.first.weight.grad is None


@slow
def test_a_batch_norm_in_train_mode_is_refused(tmp_path):
    program = stack(norm=True)
    program.model = torch.compile(program.model.eval(), backend=BACKEND)
    run, _ = start(tmp_path, program)
    assert log_three_times(run, program) == LATER
    program.model.train()
    with pytest.raises(ArgumentError, match="mixes the examples"), run(data_id=range(900, 905)):
        program.of().backward()


@slow
def test_an_error_of_the_model_is_its_own(tmp_path):
    program = stack()
    program.model = torch.compile(program.model, backend=BACKEND)
    run, _ = start(tmp_path, program)
    log_three_times(run, program, 2)
    message = "mat1 and mat2 shapes cannot be multiplied"
    with pytest.raises(RuntimeError, match=message), run(data_id=range(900, 905)):
        program.model(torch.zeros(5, 3).double())
    assert log_three_times(run, program, 1, first=5) == [True]


def test_a_compiler_that_fails_is_said_once(tmp_path):
    def broken(graph, inputs):
        raise NotImplementedError("of this backend")

    program = stack()
    expected, program.model = program.alone(), torch.compile(program.model, backend=broken)
    run, report = start(tmp_path, program)
    with pytest.warns(CompiledModelWarning, match="cannot be compiled with hooks: .*of this back"):
        assert log_three_times(run, program) == [False] * 3
    run.finalize()
    assert_alike(logged(run, report, np.arange(5) + 200), expected)


def test_code_that_computes_something_else_is_noticed(tmp_path):
    """A backend whose code is wrong: what it computes differs from the module as written."""

    def wrong(graph, inputs):
        def run(*args):
            return tuple(
                each * 1.01 if isinstance(each, torch.Tensor) else each for each in graph(*args)
            )

        return run

    program = stack()
    expected, program.model = program.alone(), torch.compile(program.model, backend=wrong)
    run, report = start(tmp_path, program)
    with pytest.warns(CompiledModelWarning, match="computes other outputs than the module as wri"):
        assert log_three_times(run, program) == [False] * 3
    run.finalize()
    assert_alike(logged(run, report, np.arange(5) + 200), expected)


def test_a_pass_without_weight_gradients_is_faster_as_written(tmp_path):
    program = mlp()
    expected, program.model = program.alone(), torch.compile(program.model, backend=BACKEND)
    check(
        tmp_path,
        program,
        expected,
        compiled=[False] * 3,
        way=lambda run, loss: run.backward(loss),
    )


def test_eager_stance_is_kept(tmp_path):
    program = stack()
    expected, program.model = program.alone(), torch.compile(program.model, backend=BACKEND)
    with torch.compiler.set_stance("force_eager"):
        check(tmp_path, program, expected, compiled=[False] * 3)
