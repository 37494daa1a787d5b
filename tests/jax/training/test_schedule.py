"""Every plan visits all segments backwards within its memory."""

import math

import pytest

from sawlog.errors import ArgumentError
from sawlog.jax._training.schedule import backwards, plan_for

STATE = 1000


def simulated(plan, kept):
    """Visit the segments as the plan says; return how many were advanced, and the most states."""
    have, order, advanced, most = {0, *kept}, [], 0, len(kept) + 1
    for action, first, second in backwards(0, plan.segments, plan.slots, kept):
        if action == "advance":
            assert first in have
            have.add(second)
            advanced += second - first
        elif action == "reverse":
            assert first in have
            order.append(first)
        else:
            have.discard(first)
        most = max(most, len(have))
    assert order == list(range(plan.segments))[::-1]
    return advanced, most


MOST = pytest.param(10_000, marks=pytest.mark.thorough)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100, 300, 1000, MOST])
@pytest.mark.parametrize("memory", ["auto", "sqrt", "log", 4 * STATE, 60 * STATE, 10**9])
def test_all_segments_backwards_within_memory(steps, memory):
    plan = plan_for(steps, memory, STATE)
    spans = [plan.span(segment) for segment in range(plan.segments)]
    assert [step for span in spans for step in range(*span)] == list(range(steps))
    for kept in (plan.recorded(), []):
        _, most = simulated(plan, kept)
        assert most + plan.length <= plan.states
        if isinstance(memory, int):
            assert plan.states * STATE <= memory


def test_the_square_root_computes_every_step_twice_and_the_logarithm_not_much_more():
    plan = plan_for(10_000, "sqrt", STATE)
    assert simulated(plan, plan.recorded())[0] == 0  # no segment between checkpoints
    assert plan.states <= 2 * 100 + 2
    plan = plan_for(10_000, "log", STATE)
    assert plan.states <= 2 * 14 + 2
    assert simulated(plan, plan.recorded())[0] <= 3 * plan.segments


def test_segments_have_one_length_if_possible():
    """Each length is compiled by itself."""
    for steps in (*range(1, 200), 1000, 10_000, 10_007):
        plan = plan_for(steps, "sqrt", STATE)
        root = math.isqrt(steps - 1) + 1
        assert plan.states <= 2.25 * root + 2
        if any(steps % n == 0 for n in range(-(-2 * root // 3), root * 3 // 2 + 1)):
            assert steps % plan.length == 0
        assert plan_for(steps, "auto", STATE).length == plan.length


def test_the_states_of_all_steps_are_kept_if_they_fit():
    assert plan_for(10_000, "auto", STATE).every
    assert not plan_for(10_000, "auto", 10**6).every
    plan = plan_for(1000, 1100 * STATE, STATE)
    assert plan.every
    assert plan.states == 1000 + 40 + 24 + 2  # 25 segments of 40 steps
    assert not plan_for(1000, (plan.states - 1) * STATE, STATE).every


def test_too_little_memory():
    with pytest.raises(ArgumentError, match=r"room for 3 states of 1,000 bytes.*Hint: give more"):
        plan_for(100, 3 * STATE, STATE)
