"""The parts of the search for interactions, each alone: what is followed, changed and compared."""

import numpy as np
import pytest
import torch

from sawlog.errors import MixedExamplesError
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._interactions import _check
from sawlog.torch._interactions._check import _alike, labels_along
from sawlog.torch._interactions._compare import (
    ChangeLimits,
    affected,
    by_example,
    changed,
    differs,
    sizes,
)
from sawlog.torch._interactions._flow import Flow, name_of, needed
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._recorder import Recorder
from sawlog.torch._interactions._replacement import Replacement, further, halves, is_separate
from sawlog.torch._interactions._replay import Stop, TapeReplay
from sawlog.torch._interactions._replayed_loss import ReplayedLoss
from sawlog.torch._interactions._tape import key_of
from tests.torch.interacting_programs import WRONG, program_of, run_of

LABELS = torch.tensor([2, 0, 1, 0])
CHOSEN = torch.tensor([True, False, False])


def followed(tape, *values):
    flow = Flow(tape)
    for each in values:
        flow.add(tape.number_of(each))
    return flow, [flow.follow(place, each) for place, each in enumerate(tape.operations)]


def test_a_python_number_passes_on_what_it_was_read_from():
    x, other = torch.randn(3), torch.randn(3)
    with Recorder() as recorder:
        by = x.sum().item()
        y = other * by
        z = other + 1
    tape = recorder.tape
    flow, depends = followed(tape, x)
    assert depends == [True, True, True, False]
    assert flow.has(tape.known(y))
    assert not flow.has(tape.known(z))


def test_shapes_alone_pass_nothing_on():
    x = torch.randn(3)
    with Recorder() as recorder:
        zeros = torch.zeros_like(x)
        zeros.add_(1)
        zeros.add_(x)
    flow, depends = followed(recorder.tape, x)
    assert depends == [False, False, True]
    assert flow.has(recorder.tape.known(zeros))


def loss_of(tape):
    return TapedLoss(tape, len(tape.operations), (), (), (), ())


def test_what_changes_memory_is_needed_by_its_views():
    x, other, unused = torch.randn(3), torch.randn(3), torch.randn(3)
    with Recorder() as recorder:
        h = x * 2
        part = h[:2]
        by = other.exp()
        h.add_(by)
        unused.cos()
        found = part + 1
        found.sum()
    tape = recorder.tape
    places, numbers = needed(loss_of(tape), [tape.known(found)])
    names = [name_of(tape.operations[place]) for place in sorted(places)]
    assert names == ["mul", "slice", "exp", "add_", "add"]
    assert {tape.known(by), tape.number_of(other)} <= numbers
    assert tape.number_of(unused) not in numbers


def test_the_operation_that_a_number_was_read_by_is_needed():
    x, other = torch.randn(3), torch.randn(3)
    with Recorder() as recorder:
        found = other * x.max().item()
        other.sin()
    tape = recorder.tape
    places, _ = needed(loss_of(tape), [tape.known(found)])
    names = [name_of(tape.operations[place]) for place in sorted(places)]
    assert names == ["max", "_local_scalar_dense", "mul"]


def test_views_that_negate_or_conjugate_have_numbers_of_their_own():
    x = torch.randn(3, dtype=torch.complex64)
    assert key_of(x) == key_of(x.view(3))
    assert key_of(x) != key_of(x.conj())
    assert key_of(x.imag) != key_of(x.conj().imag)
    assert key_of(x.real) != key_of(x.imag)
    assert key_of(torch.zeros(2, 3)) != key_of(torch.zeros(3, 2))
    assert key_of(torch.zeros(3, 2)) != key_of(torch.zeros(2, 3).mT)


def test_a_conjugate_is_replayed_as_one():
    x = torch.randn(3, dtype=torch.complex64)
    with Recorder() as recorder:
        found = x * x.conj()
        imaginary = x.conj().imag * 1
    tape = recorder.tape
    kept = [tape.known(found), tape.known(imaginary)]
    again = TapeReplay(tape, len(tape.operations), kept).run()
    assert torch.equal(again[kept[0]], found)
    assert torch.equal(again[kept[1]], imaginary)


def test_views_that_no_operation_returned():
    """At their offset, whatever its shape."""
    x = torch.arange(6.0)
    with Recorder() as recorder:
        y = x * 2
    tape = recorder.tape
    for view in (y[2:5], y.reshape(2, 3).mT, y[1::2]):
        number = tape.number_of(view)
        again = TapeReplay(tape, len(tape.operations), [number]).run()
        assert torch.equal(again[number], view)


def test_what_an_operation_changes_besides_is_followed():
    x, mean, variance = torch.randn(4, 2), torch.zeros(2), torch.ones(2)
    with Recorder() as recorder:
        torch.nn.functional.batch_norm(x, mean, variance, training=True)
        after = mean * 2
    flow, depends = followed(recorder.tape, x)
    assert depends[-2:] == [True, True]
    assert flow.has(recorder.tape.known(after))


def test_values_that_only_replays_compute_have_no_memory_in_common():
    x = torch.randn(3)
    with Recorder() as recorder:
        total = x.sum().item()
        found = torch.tensor([total, total + 1]) * 2
    tape = recorder.tape
    only = [n for n, memory in enumerate(tape._memory_of_value) if memory is None]
    assert len({tape.memory_id(number) for number in only}) == len(only) > 1
    again = TapeReplay(tape, len(tape.operations), [tape.known(found)]).run()
    assert torch.equal(again[tape.known(found)], found)


def test_stops_change_values_between_operations():
    """Before the first operation, in the middle, and after the last."""
    x = torch.tensor([1.0, 2.0])
    with Recorder() as recorder:
        y = x + 1
        z = y * 10
    tape = recorder.tape
    number, end = tape.known(z), len(tape.operations)

    def value(stop):
        return TapeReplay(tape, end, [number]).run([stop])[number].tolist()

    assert value(Stop(0, tape.number_of(x), lambda v: v + 1)) == [30.0, 40.0]
    assert value(Stop(1, tape.known(y), lambda v: -v)) == [-20.0, -30.0]
    assert value(Stop(2, number, lambda v: v / 10)) == [2.0, 3.0]


def test_memory_that_elements_share_cannot_be_replaced():
    plain = torch.zeros(3, 4)
    assert is_separate(plain)
    assert is_separate(plain.mT)
    assert is_separate(torch.zeros(1, 4).expand(1, 4))
    assert is_separate(torch.zeros(()))
    assert not is_separate(torch.zeros(1, 4).expand(3, 4))
    assert not is_separate(torch.zeros(4, 1).expand(4, 3))


def test_only_bits_of_other_examples_are_a_difference():
    before = torch.zeros(4, 2)
    for row, other in [(0, True), (1, False), (2, True), (3, False)]:
        after = before.clone()
        after[row, 1] = 1e-20
        assert differs(before, after, LABELS, CHOSEN) is other
    assert not differs(before, before.clone(), LABELS, CHOSEN)
    assert not differs(before[:0], before[:0], LABELS[:0], CHOSEN)


def test_values_change_if_more_than_a_share_of_what_was_changed():
    limits = ChangeLimits(0.1, 0.01)
    before = torch.tensor([100.0, 1.0, 1.0, 1.0]).double()

    def found(*changes):
        return affected(before, before + torch.tensor(changes).double(), LABELS, CHOSEN, limits)

    assert found(0, 5, 0, 7) == []  # of the chosen one alone
    assert found(0, 0, 0.5, 1) == [1]
    assert found(0, 2, 0.15, 1) == []  # 0.2 of the chosen one's, with 0.01 of its own size
    assert found(0, 1, 0.15, 2) == []  # the greatest change of an example counts
    assert found(0.5, 1, 0.25, 0) == [1]  # the size of example 2 makes it rounding
    assert found(-2, -1, -0.25, 0) == [1, 2]
    assert found(30, 1, 0.15, 0) == [1, 2]  # what changed most need not be what was changed
    there = before.clone()
    there[0] = torch.nan
    assert affected(there, there + 1, LABELS, CHOSEN, limits) == [1]


def test_gradients_change_by_a_share_of_themselves():
    limits = ChangeLimits(0.1, 0.01)
    before = torch.tensor([100.0, 1.0, 1.0, 1.0]).double()

    def found(*changes):
        return changed(before, before + torch.tensor(changes).double(), LABELS, CHOSEN, limits)

    assert found(0, 5, 0, 7) == []
    assert found(0, 0, 1, 0) == []  # 0.01 of the greatest
    assert found(0, 0, -1.2, 0) == [1]
    assert found(10, 0, -1.2, 0) == [1]
    assert found(12, 0, 0, 0) == [2]


def test_the_greatest_of_each_example():
    values = torch.tensor([[1.0, -2.0], [3.0, 4.0], [0.0, 0.5], [5.0, 0.0]])
    assert by_example(values, LABELS, 4).tolist() == [5.0, 0.5, 1.0, 0.0]
    two = by_example(values.reshape(2, 2, 2), LABELS.reshape(2, 2), 3)
    assert two.tolist() == [5.0, 0.5, 1.0]
    assert by_example(values[:, :0], LABELS, 3).tolist() == [0.0, 0.0, 0.0]
    rows = torch.tensor([[3.0, 4.0], [torch.inf, 1.0], [0.0, 6.0]])
    norms = sizes(rows, torch.tensor([1, 0, 1]), 2)
    assert norms.tolist() == [1.0, 6.0]


def test_the_least_precise_dtype_decides_what_counts():
    of = ChangeLimits.of
    double, single, half = {torch.float64}, {torch.float32}, {torch.bfloat16}
    whole = {torch.int64}
    assert of(double) == of(double | whole)
    assert of(double).share < of(double, False).share
    assert of(double, False).share < of(single).share
    assert of(double).share < of(single).share < of(half).share < of(half, False).share
    assert of(double).rounding < of(single).rounding < of(half).rounding
    assert of(half).rounding < of(half, False).rounding
    assert of(double | single) == of(single) == of(single, False)
    assert of(double | single | half) == of({torch.float16}) == of(half)


def test_a_replacement_gives_the_values_of_another_example():
    value = torch.arange(6.0).reshape(3, 2)
    layout = ExampleLayout(0)
    chosen = torch.tensor([True, False, True])
    apply = Replacement(chosen, 1).apply
    assert apply(value.clone(), layout).tolist() == [[2, 3], [2, 3], [2, 3]]
    turned = Replacement(chosen, 1, -4.0).apply(value.clone(), layout)
    assert turned.tolist() == [[-8, -12], [2, 3], [-8, -12]]
    turn = Replacement(chosen, 1, -4.0).apply
    assert turn(torch.arange(3), layout).tolist() == [1, 1, 1]  # labels
    assert turn(torch.arange(6).view(3, 2), layout).tolist() == [[0, 1], [2, 3], [4, 5]]
    near = Replacement(chosen, None).apply(value.clone(), layout)
    assert torch.equal(near[1], value[1])
    moved = ((near - value).abs() / value.clamp(min=1))[[0, 2]]
    assert 0 < moved.max() < 0.1
    assert Replacement(chosen, None).apply(torch.arange(3), layout).tolist() == [0, 1, 2]
    view = value[:, 0]
    apply(value, layout)
    assert view.tolist() == [2, 2, 2]


@pytest.mark.parametrize("batch", [2, 3, 6, 7])
def test_two_halves_are_all_examples(batch):
    losses = torch.randn(batch, generator=torch.Generator().manual_seed(batch)).double()
    one, two = halves(losses)
    assert torch.equal(one.chosen, ~two.chosen)
    assert one.source == int(losses.argmax())
    assert two.source == int(losses.argmin())
    assert not one.chosen[one.source]
    assert not two.chosen[two.source]
    assert int(two.chosen.sum()) == 1 + (batch - 2) // 2


def test_further_replacements_keep_their_source():
    found = further(8, 9)
    assert [each.times for each in found] == [1, 1, -4, -4, 4, 4, 1, 1, -4]
    assert [8 - int(each.chosen.sum()) for each in found] == [2, 4, 2, 4, 2, 4, 2, 4, 2]
    assert not any(bool(each.chosen[each.source]) for each in found)
    assert len({tuple(each.chosen.tolist()) for each in found}) > 5
    assert [int(each.chosen.sum()) for each in further(2, 3)] == [1, 1, 1]


def test_labels_of_rows_behind_other_axes():
    assert labels_along(ExampleLayout(0), (3, 2), 3).tolist() == [0, 1, 2]
    assert labels_along(ExampleLayout(1), (2, 3, 5), 3).tolist() == [[0, 1, 2], [0, 1, 2]]


def replayed(value, states=(), shape=(3,)):
    term = torch.full(shape, value)
    return ReplayedLoss((torch.zeros(shape), term), None, (), states, 0)


def test_replays_that_cannot_be_compared():
    one, other = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert _alike(replayed(1.0, (one,)), replayed(2.0, (one.clone(),)))
    assert not _alike(replayed(1.0, (one,)), replayed(2.0, (other,)))
    assert not _alike(replayed(1.0, (one, one)), replayed(2.0, (one, other)))
    assert not _alike(replayed(1.0), replayed(1.0, shape=(4,)))
    assert not _alike(replayed(1.0), replayed(torch.inf))
    assert not _alike(replayed(1.0), replayed(torch.nan))
    assert _alike(replayed(torch.inf), replayed(torch.inf))
    assert _alike(replayed(torch.inf), replayed(1.0))


def test_small_changes_show_what_no_other_example_can(tmp_path, monkeypatch):
    """Where a replay with values of another example fails."""
    original, sources = _check.replay_loss, []

    def replay(loss, tensors, replacement):
        if replacement is not None:
            sources.append(replacement.source)
            if replacement.source is not None:
                raise ValueError("a shape that only these values have")
        return original(loss, tensors, replacement)

    monkeypatch.setattr(_check, "replay_loss", replay)
    program = program_of(WRONG["centred"][0])
    run, _ = run_of(tmp_path, program)
    refused = pytest.raises(MixedExamplesError, match="leaves no gradient")
    with refused, run(data_id=np.arange(program.size)):
        program.of().backward()
    run.finalize()
    assert sources[0] is not None
    assert sources[1] is None
