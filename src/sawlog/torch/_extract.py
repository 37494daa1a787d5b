"""``run.extract``: the whole first stage in one call, all passes over the data that are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Logs
from sawlog.run_files._blocks import compressed
from sawlog.run_files._options import Compression, Options
from sawlog.torch._alone import one_of
from sawlog.torch._batches import DataId, size_of
from sawlog.torch._capture import Gathering
from sawlog.torch._check import (
    RANK,
    Check,
    Comparison,
    Step,
    added_up,
    alone,
    autocast_seen,
    compared,
    left_as_it_was,
    loss_of,
    loss_problem,
    projected,
    reasons_for,
    tolerance_of,
)
from sawlog.torch._names import named_parameters
from sawlog.torch._pass import Asking

if TYPE_CHECKING:
    from sawlog.torch._run import Run

Mask = Callable[[Any], Any] | str | int | None
One = Callable[[Any, int], Any] | None


@dataclasses.dataclass(frozen=True)
class Extraction:
    """What :meth:`sawlog.torch.Run.extract` did.

    Args:
        examples: how many examples were logged or measured now, in each pass.
        passes: what each pass was for.
        check: what the check of the first batch found; None if there was none.
    """

    examples: tuple[int, ...]
    passes: tuple[str, ...]
    check: Check | None


def passes_of(options: Options) -> list[tuple[str, Options]]:
    """The passes over the data that options need, each with what it is for."""
    passes = []
    factors = dataclasses.replace(options, log=("grad",), save=(), statistic=("kfac",))
    if options.compress is not None and options.compress.kind == "pca":
        passes.append(("covariances", dataclasses.replace(factors, compress=None)))
    if "ekfac" in options.statistic:
        passes.append(("K-FAC", factors))
    last = "EK-FAC" if "ekfac" in options.statistic else "rows" if options.saved else "statistics"
    if last == "EK-FAC" and options.saved:
        last = "EK-FAC and rows"
    return [*passes, (last, options)]


def extract(
    run: Run,
    step: Step,
    loader: Iterable[Any],
    data_id: DataId,
    mask: Mask,
    check: bool,
    one: One,
    quiet: bool,
) -> Extraction:
    """All passes over a loader; see :meth:`sawlog.torch.Run.extract`."""
    wanted = run.options
    passes = [("queries", wanted)] if run._evaluates else passes_of(wanted)
    if len(passes) > 1 and isinstance(loader, Iterator):
        raise ArgumentError(
            f"{len(passes)} passes over the data are needed ({', '.join(n for n, _ in passes)}), "
            "and a generator can be gone through once. Hint: give a DataLoader or a list."
        )
    counts, checked = [], None
    for name, options in passes:
        if not run._evaluates:
            run.finalize()
            run._options, run._asked = options, wanted
        try:
            own = check and checked is None
            count, found = _pass(run, step, loader, data_id, mask, own, one, name, quiet)
        finally:
            if not run._evaluates:
                run.finalize()
                run._options, run._asked = wanted, None
        _wait_for_others()
        counts.append(count)
        checked = checked or found
    return Extraction(tuple(counts), tuple(name for name, _ in passes), checked)


def _pass(
    run: Run,
    step: Step,
    loader: Iterable[Any],
    data_id: DataId,
    mask: Mask,
    check: bool,
    one: One,
    name: str,
    quiet: bool,
) -> tuple[int, Check | None]:
    count, checked, queries = 0, None, []
    model = run._stepped()
    for ids, batch in run._batches(loader, data_id, f"{run.project}: {name}", quiet):
        own = _mask_of(mask, batch)
        if check and checked is None and {"grad", "backward"} & {*run.options.log}:
            checked = examine(run, step, batch, own, 3, one, None)
            if not checked.ok:
                raise CaptureError(checked.message())
        with run(data_id=ids, mask=own):
            if run._batch is not None:
                _walk(run, step(model, batch), len(ids))
                count += len(ids)
        if run._evaluates:
            queries.append(run.get_log())
    if queries:
        run._log = Logs.join(queries)
    return count, checked


def _walk(run: Run, value: Any, size: int) -> None:
    """Walk back from what a step returned, if gradients are wanted."""
    if {"grad", "backward"} & {*run.options.log}:
        loss, each = loss_of(value, size)
        assert run._batch is not None
        if each is not None:
            _declare_sum(run._batch)
        run.backward(loss)


def _declare_sum(batch: Gathering) -> None:
    """The loss is a sum over examples, as was made of what a step returned."""
    batch._options = dataclasses.replace(batch._options, reduction="sum")


def _mask_of(mask: Mask, batch: Any) -> Any:
    if mask is None:
        return None
    return mask(batch) if callable(mask) else batch[mask]


def _wait_for_others() -> None:
    """The next pass uses what all processes measured in this one."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


# -- the check ------------------------------------------------------------------------------------


def examine(
    run: Run,
    step: Step,
    batch: Any,
    mask: Any,
    examples: int,
    one: One,
    tolerance: float | None,
) -> Check:
    """Some examples of a batch alone, against what is logged of them; see ``run.check``."""
    if run._watched is None or run._model is None:
        raise ArgumentError("There is no model yet. Hint: run.watch(model).")
    size = size_of(batch)
    if not size:
        raise ArgumentError("The batch to check has no examples.")
    options = dataclasses.replace(
        run.options,
        log=("grad",),
        save=None,
        statistic=(),
        compress=Compression("orthonormal", rank=RANK),
        nonfinite="store",
    )
    blocks = compressed(run._watched.blocks, options.compress, "float32")
    watched = run._watched.with_blocks(blocks)
    assert run._fingerprint is not None
    asking = Asking(run.path, options, watched, run._axis, run._fingerprint)
    model = run._stepped()
    modules = [unit.module for unit in watched.units]
    with left_as_it_was(run._model), autocast_seen(modules) as mixed:
        drawn = torch.random.get_rng_state()
        try:
            logged, whole, each, scale = _in_batch(run, asking, model, step, batch, size, mask)
        except CaptureError as error:
            return Check((), (), 0.0, "", (), str(error))
        torch.random.set_rng_state(drawn)  # dropout that is on is the same in both
        total, _ = _alone(run, model, step, batch, asking, size)
        cut = one or (lambda batch, i: one_of(batch, i, size, run._axis))
        places = _spread(size, examples)
        found = [_alone(run, model, step, cut(batch, i), asking) for i in places]
        again = _alone(run, model, step, cut(batch, places[0]), asking)
    parameters = [p for p in run._model.parameters() if p.requires_grad]
    limit = tolerance_of(parameters, bool(mixed)) if tolerance is None else tolerance
    expected = {block.name: np.stack([rows[block.name] for rows, _ in found]) for block in blocks}
    floor = 1e-6 * max((float(np.abs(rows).max()) for rows in expected.values()), default=0.0)
    layers = tuple(
        added_up(
            compared(name, logged[name][list(places)], rows, limit, floor),
            logged[name],
            scale,
            total[name],
            limit,
        )
        for name, rows in expected.items()
    )
    losses = {i: loss for i, (_, loss) in zip(places, found, strict=True)}
    loss = loss_problem(whole, each, losses, size, max(limit, 1e-4))
    repeats = all(_again(rows, found[0][0][name], limit) for name, rows in again[0].items())
    reasons = [] if all(e.same for e in layers) else reasons_for(run._model, layers, repeats)
    return Check(layers, places, limit, loss, tuple(reasons))


def _again(rows: np.ndarray, before: np.ndarray, limit: float) -> bool:
    return compared("", rows[None], before[None], limit, 0.0).same


def _spread(size: int, examples: int) -> tuple[int, ...]:
    """Places all over a batch, the first and the last among them."""
    count = min(size, max(1, examples))
    return tuple(np.unique(np.linspace(0, size - 1, count).round().astype(int)).tolist())


def _in_batch(
    run: Run, asking: Asking, model: nn.Module, step: Step, batch: Any, size: int, mask: Any
) -> tuple[dict[str, np.ndarray], float, np.ndarray | None, float | np.ndarray | None]:
    """The rows of a batch, its loss, those of its examples if the step tells, and the scale."""
    if run._batch is not None:
        raise CaptureError("check was called inside of `with run(...)`.")
    own = None if mask is None else torch.as_tensor(mask).to(torch.bool)
    run._batch = gathering = asking.gathering(size, None, own, None)
    try:
        with gathering.watching():
            loss, each = loss_of(step(model, batch), size)
            if each is not None:
                _declare_sum(gathering)
            gathering.backward(loss)
    finally:
        run._batch = None
    logs = asking.log(gathering, np.arange(size))
    rows = logs.whole().rows()
    several = None if each is None else each.detach().double().cpu().numpy()
    (scale,) = gathering.scales
    by = scale.cpu().numpy() if isinstance(scale, Tensor) else scale
    return rows, float(loss.detach()), several, by


def _alone(
    run: Run, model: nn.Module, step: Step, batch: Any, asking: Asking, size: int = 1
) -> tuple[dict[str, np.ndarray], float]:
    assert run._model is not None
    names = named_parameters(run._model)
    named: dict[str, Tensor] = {names[id(p)]: p for p in run._model.parameters()}
    blocks = asking.watched.blocks
    grads, loss = alone(model, step, batch, blocks, named, size)
    matrices = asking.matrices
    return {b.name: projected(b, grads[b.name], matrices) for b in blocks}, loss


__all__ = ["Comparison", "Extraction", "examine", "extract", "passes_of"]
