"""Ways of running programs that depend little on the program: a few rows each."""

from __future__ import annotations

import jax
import jax.export
import pytest

import sawlog
import sawlog.errors

from .case_ways import call, check_output, check_spool, expect, halved, spooled, tapped
from .cases import CASES, Case, many
from .cases.base import stack
from .cases.compare import same_calls, same_logs

FEW = ("one_site", "two_sites_one_name", "scan", "steps_in_scan", "vmap_of_scan", "grad_of_scan")
few = pytest.mark.parametrize("case", [CASES[name] for name in FEW], ids=FEW)


@few
def test_keep_logs(case: Case) -> None:
    """With keep_logs the outer spool sees the logs as well."""
    kept = sawlog.spool(case.fun, keep_logs=True)
    (out, inner), outer = call(sawlog.spool(kept), case)
    check_output(case, out, "spool(spool(f, keep_logs=True))")
    for logs in (inner, outer):
        same_logs(logs, expect(case)[1], case.rtol)


@few
def test_consumed_logs_reach_no_callback(case: Case) -> None:
    """tap around spool is not called."""
    seen: list = []
    call(sawlog.tap(spooled(case), seen.append), case)
    assert seen == []


@few
def test_tap_strip(case: Case) -> None:
    """tap around strip is not called."""
    seen: list = []
    call(sawlog.tap(sawlog.strip(case.fun), seen.append), case)
    assert seen == []


@few
def test_vmap_tap(case: Case) -> None:
    """vmap(tap(f)) calls back once for each lane."""
    lanes = [case.args, halved(case.args, {})[0]]
    calls: list = []
    jax.vmap(tapped(case, calls))(*stack(lanes))
    jax.effects_barrier()
    answers = [case.answer(*args)[1] for args in lanes]
    both = {
        key: many(
            [value for logs in answers for value in logs[key].values],
            **{
                step: [entry for logs in answers for entry in logs[key].steps[step]]
                for step in logged.steps
            },
        )
        for key, logged in answers[0].items()
    }
    same_calls(calls, both, ordered=False, rtol=case.rtol)


@few
def test_lower_and_compile(case: Case) -> None:
    """jit(spool(f)).lower().compile() is the same program."""
    compiled = jax.jit(spooled(case)).lower(*case.args).compile()
    check_spool(case, compiled, "the compiled program")


@few
def test_export(case: Case) -> None:
    """jit(spool(f)) goes through jax.export and its bytes; so does the program with its logs."""
    exported = jax.export.export(jax.jit(spooled(case)))(*case.args)
    again = jax.export.deserialize(exported.serialize())
    check_spool(case, again.call, "the exported program")
    plain_program = jax.export.export(jax.jit(case.fun))(*case.args)
    check_output(case, call(plain_program.call, case), "the exported plain program")
