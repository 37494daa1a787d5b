"""Interactions through hooks, numbers that are read as lists, and decisions that labels hide."""

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sawlog.errors import MixedExamplesError
from sawlog.torch._interactions._lists import reporting_lists
from tests.torch.expert_models import SplitExperts
from tests.torch.interacting_programs import hidden, program_of, run_of
from tests.torch.programs import assert_alike, logged
from tests.torch.test_interactions import concluded

__all__ = ["concluded"]  # a fixture


def centred(module, args, output):
    return output - output.detach().mean(0)


def centred_in_place(module, args, output):
    output.sub_(output.detach().mean(0))


def scaled(module, args, output):
    return output * 1.5


@pytest.mark.parametrize("hook", [centred, centred_in_place])
def test_a_hook_that_joins_examples_is_refused(hook, tmp_path):
    program = program_of(hidden(lambda h: h))
    program.model.first.register_forward_hook(hook)
    run, _ = run_of(tmp_path, program)
    with pytest.raises(MixedExamplesError, match="is 'mean' of"), run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()


@pytest.mark.parametrize("hook", [centred, scaled])
def test_a_hook_on_all_modules(hook, tmp_path, concluded):
    program = program_of(hidden(lambda h: h))
    own = program.model.first

    def only(module, args, output):
        return hook(module, args, output) if module is own else None

    run, report = run_of(tmp_path, program, dtype="float64")
    everywhere = torch.nn.modules.module._global_forward_hooks
    handle = torch.nn.modules.module.register_module_forward_hook(only)
    try:
        if hook is centred:
            said = pytest.raises(MixedExamplesError, match="is 'mean' of")
            with said, run(data_id=range(program.size)):
                program.of().backward()
        else:
            with run(data_id=range(program.size)):
                program.of().backward()
        assert list(everywhere) == [handle.id]
        expected = program.alone()
    finally:
        handle.remove()
    run.finalize()
    if hook is scaled:
        assert concluded == [""]
        found = logged(run, report, range(program.size))
        assert_alike(found, {each: expected[each] for each in found})


def test_a_hook_that_keeps_examples_apart_is_right(tmp_path, concluded):
    program = program_of(hidden(lambda h: h))
    program.model.first.register_forward_hook(scaled)
    run, report = run_of(tmp_path, program, dtype="float64")
    hooks = list(program.model.first._forward_hooks)
    with run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()
    assert list(program.model.first._forward_hooks) == hooks
    assert concluded == [""]
    expected = program.alone()
    found = logged(run, report, range(program.size))
    assert_alike(found, {each: expected[each] for each in found})


LISTS = {
    "the greatest of each feature": lambda h: h / torch.tensor(h.abs().amax(0).tolist()).to(h),
    "in two rows": lambda h: (h[:, None] - torch.tensor([h.mean(0).tolist()] * 2).to(h)).mean(1),
    "the greatest of a list": lambda h: h / max(h.abs().amax(1).tolist()),
    "a tensor of one number": lambda h: h / torch.tensor(h.std().item()),
    "rounded to float32": lambda h: h / torch.tensor(h.std().item(), dtype=torch.float32),
}


@pytest.mark.parametrize("name", LISTS)
def test_numbers_of_the_batch_in_lists_are_refused(name, tmp_path):
    program = program_of(hidden(LISTS[name]))
    run, _ = run_of(tmp_path, program)
    said = pytest.raises(MixedExamplesError, match="leaves no gradient")
    with said, run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()


def test_a_threshold_that_labels_alone_would_keep(tmp_path):
    """Each example of one class has a greater loss than each of the other, whatever its inputs."""
    program = program_of(
        lambda m, x, y: (lambda each: torch.where(each <= each.detach().median(), each, 0))(
            F.cross_entropy(0.1 * m(x), y, reduction="none")
        ).mean()
    )
    program.batch = (program.batch[0], torch.arange(program.size) % 2)
    with torch.no_grad():
        program.model.second.bias.copy_(torch.tensor([40.0, 0.0, 0.0]))
    run, _ = run_of(tmp_path, program)
    said = pytest.raises(MixedExamplesError, match="leaves no gradient")
    with said, run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()


def test_sizes_of_a_split_that_depend_on_values(tmp_path, concluded):
    program = program_of(lambda m, x, y: F.cross_entropy(m(x), y), kind=SplitExperts)
    run, report = run_of(tmp_path, program, dtype="float64")
    for first in (0, 100):
        with run(data_id=np.arange(program.size) + first):
            program.of().backward()
    run.finalize()
    assert set(concluded) == {""}
    assert_alike(logged(run, report, range(program.size)), program.alone())


class SlicedExperts(SplitExperts):
    """The same, by slices that begin where the last one ended."""

    def forward(self, x):
        h = torch.tanh(self.first(x))
        best, chosen = self.router(h).softmax(-1).max(-1)
        order, start, out = chosen.sort(stable=True).indices, 0, []
        for expert, count in zip(self.experts, F.one_hot(chosen, 2).sum(0).tolist(), strict=True):
            out.append(expert(h[order][start : start + count]))
            start += count
        out = torch.cat(out) * best[order, None]
        return self.last(torch.zeros_like(h).index_add(0, order, out))


SIZES = {
    "a slice": lambda h, n: h - h[:, :n].mean(1, keepdim=True),
    "a slice from the end": lambda h, n: h - h[:, -n:].mean(1, keepdim=True),
    "narrowed": lambda h, n: h - h.narrow(1, 0, n).mean(1, keepdim=True),
    "selected": lambda h, n: h - h[:, n, None],
    "the greatest of them": lambda h, n: h - h.topk(n, 1).values.mean(1, keepdim=True),
    "a mean of ones": lambda h, n: h / h.new_ones(n).sum(),
    "split": lambda h, n: h - h.split(n, 1)[0].mean(1, keepdim=True),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_the_batch_decides_are_refused(name, tmp_path):
    def changed(h):
        count = (h.detach().abs().amax(0) > 0.75).sum()
        assert 2 < int(count) < h.shape[1]
        count = count.item()
        return SIZES[name](h, count)

    program = program_of(hidden(changed))
    run, _ = run_of(tmp_path, program)
    said = pytest.raises(MixedExamplesError, match="leaves no gradient")
    with said, run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()


@pytest.mark.parametrize("kind", [SlicedExperts])
def test_slices_that_depend_on_values(tmp_path, concluded, kind):
    program = program_of(lambda m, x, y: F.cross_entropy(m(x), y), kind=kind, size=12)
    run, report = run_of(tmp_path, program, dtype="float64")
    with run(data_id=np.arange(program.size)):
        program.of().backward()
    run.finalize()
    assert concluded == [""]
    assert_alike(logged(run, report, range(program.size)), program.alone())


def test_lists_that_are_only_looked_at(tmp_path, concluded):
    seen = []

    def looked_at(model, x, y):
        out = model(x)
        seen.append((out.tolist(), out.argmax(1).tolist(), out.mean().tolist()))
        return F.cross_entropy(out, y)

    program = program_of(looked_at)
    expected = program.alone()
    run, report = run_of(tmp_path, program, dtype="float64")
    with run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()
    assert concluded == [""]
    assert [type(each) for each in seen[-1]] == [list, list, float]
    found = logged(run, report, range(program.size))
    assert_alike(found, {each: expected[each] for each in found})


def test_only_this_thread_reports_lists():
    original, seen = torch.Tensor.tolist, []
    with reporting_lists(seen.append):
        thread = threading.Thread(target=torch.ones(3).tolist)
        thread.start()
        thread.join()
        assert seen == []
        assert torch.ones(2).tolist() == [1, 1]
        assert len(seen) == 1
    assert torch.Tensor.tolist is original


def test_a_fourier_transform_over_axes_of_an_example(tmp_path):
    """Its node saves several axes."""

    def mixed(h):
        return torch.fft.fftn(h.unflatten(1, (2, 3)), dim=(1, 2)).real.flatten(1)

    program = program_of(hidden(mixed))
    run, report = run_of(tmp_path, program, dtype="float64")
    for first in (0, 100):
        with run(data_id=np.arange(program.size) + first):
            program.of().backward()
    run.finalize()
    expected = program.alone()
    for first in (0, 100):
        found = logged(run, report, np.arange(program.size) + first)
        assert_alike(found, {each: expected[each] for each in found})
