"""What a batch gathers: rows for the store, and statistics, from the factor pairs of its layers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.capture import LEFT, RIGHT, Block, Options, Statistics, encode
from sawlog.errors import ArgumentError, CaptureError
from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.torch._hooks import Hooks, first_tensor, last_edges
from sawlog.torch._layers import FunctionRule, GeneralRule, Use
from sawlog.torch._loss import Scale, scale_of
from sawlog.torch._matrices import Matrices
from sawlog.torch._outer import Outer
from sawlog.torch._patch import losses_seen_by
from sawlog.torch._watched import Unit, Watched


class Gathering:
    """One batch: hooks that gather, and what they gathered.

    Args:
        watched: what to look at.
        options: what to log.
        matrices: projections and eigenbases.
        statistics: where sums go; they are added when the batch is complete.
        batch: how many examples there are.
        todo: which of them are to be logged, as a mask ``[batch]``; None is all.
        mask: which positions of each example count, ``[batch, positions]``.
        factor: what gradients are divided by, as the scale of a ``GradScaler``.
        axis: the axis of the examples.
        rooms: memory that batches share; what :meth:`rows` returns is then good until the next.
    """

    def __init__(
        self,
        watched: Watched,
        options: Options,
        matrices: Matrices,
        statistics: Statistics,
        *,
        batch: int,
        todo: Tensor | None,
        mask: Tensor | None,
        factor: float,
        axis: int,
        rooms: dict[Any, Tensor] | None = None,
    ) -> None:
        self._watched, self._options, self._matrices = watched, options, matrices
        self._statistics = statistics
        self._batch, self._todo, self._mask, self._axis = batch, todo, mask, axis
        self._factor, self._rooms = factor, rooms
        self._scale: Scale | None = None
        self._lock = threading.Lock()
        self._grads: dict[str, Tensor | Outer] = {}
        self._moments: list[tuple[str, Tensor, int]] = []
        self._pairs: dict[str, list[Pair]] = {}
        self._logs: dict[str, Tensor] = {}
        self._seen: dict[str, int] = {}
        wants = set(options.log)
        self.hooks = Hooks(
            watched.units,
            self._check_batch,
            self._forward if "forward" in wants else None,
            self._backward if wants & {"grad", "backward"} else None,
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Gather what happens in a ``with``."""
        with self.hooks.installed(), losses_seen_by(self._loss_seen):
            yield

    # -- how the loss joins examples --------------------------------------------------------------

    def _loss_seen(self, loss: Tensor) -> None:
        if self._scale is None and self.hooks.calls:
            self._scale = self._scale_of(loss)

    def _scale_of(self, loss: Tensor | None) -> Scale:
        how = self._options.reduction
        if how == "sum":
            return 1.0
        if how == "mean":
            return float(self._batch)
        if how == "tokens":
            if self._mask is None:
                raise ArgumentError(
                    'reduction="tokens" needs to know which positions count. Hint: '
                    "run(data_id=ids, mask=attention_mask)."
                )
            own = self._mask.reshape(self._batch, -1).sum(1).to(torch.float64)
            return torch.where(own > 0, own.sum() / own, torch.zeros_like(own))
        if loss is None:
            raise CaptureError(
                "The backward pass was not begun by loss.backward(), so it cannot be seen how the "
                'loss joins the examples. Hint: run.setup(reduction="mean"), or "sum".'
            )
        return scale_of(loss, self._batch)

    def _settled(self) -> Scale:
        if self._scale is None:
            self._scale = self._scale_of(None)
        return self._scale

    def backward(self, loss: Tensor) -> None:
        """Walk back from the loss only as far as is needed; parameters get no gradients."""
        self._loss_seen(loss)
        edges = last_edges(loss, self.hooks.edges)
        if not edges:
            raise CaptureError(
                "The loss does not depend on any watched layer that ran in this batch. Hint: "
                "compute it inside of `with run(data_id=ids):`."
            )
        torch.autograd.grad(loss, edges, allow_unused=True)

    # -- what the hooks bring ---------------------------------------------------------------------

    def _name(self, kind: str, unit: Unit) -> str:
        """The name of a log; of a module that is called again, with a number."""
        name = f"{kind}/{unit.name}"
        with self._lock:
            count = self._seen[name] = self._seen.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _forward(self, unit: Unit, args: Any, kwargs: Any, output: Tensor) -> None:
        tensor = output
        if self._options.forward == "input":
            found = first_tensor((*args, kwargs))
            if found is None:
                raise CaptureError(f"The layer {unit.name!r} was called without a tensor.")
            tensor = found
        with torch.no_grad():
            self._keep(unit, self._name("forward", unit), tensor.detach())

    def _keep(self, unit: Unit, name: str, tensor: Tensor, scale: Scale = 1.0) -> None:
        """Keep a log of forward or backward, with the examples in front."""
        axis = self._axis_in(unit, tensor)
        tensor = tensor.movedim(axis, 0) if axis else tensor
        if len(tensor) != self._batch:  # several positions of each example
            inner = self._axis == 1  # flattened from [positions, batch]
            sizes = (-1, self._batch) if inner else (self._batch, -1)
            tensor = tensor.unflatten(0, sizes)
            tensor = tensor.movedim(1, 0) if inner else tensor
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.float32)
        if not isinstance(scale, float):
            scale = scale.to(tensor).reshape(-1, *(1,) * (tensor.ndim - 1))
        with self._lock:
            self._logs[name] = self._chosen(tensor * scale)

    def _backward(self, unit: Unit, args: Any, kwargs: Any, grad: Tensor) -> None:
        scale = self._settled()
        if "backward" in self._options.log:
            self._keep(unit, self._name("backward", unit), grad, scale / self._factor)
        if "grad" in self._options.log and unit.shares:
            use = Use(args, kwargs, grad, self._batch, self._axis)
            pairs = unit.rule.pairs(unit.module, use)
            for share in unit.shares:
                self._take(share.block, share.of(pairs[share.part.name]))

    def _axis_in(self, unit: Unit, tensor: Tensor) -> int:
        """The axis of the examples; some layers have one of their own."""
        first = getattr(unit.module, "batch_first", None)
        axis = self._axis if first is None else int(not first)
        if tensor.ndim == 2 and tensor.is_floating_point():  # [positions x batch, features]
            free = isinstance(unit.rule, (GeneralRule, FunctionRule))  # or the features are gone
            return axis if free and tensor.shape[1] == self._batch else 0
        return axis if tensor.ndim > 1 else 0

    def _check_batch(self, unit: Unit, args: tuple[Any, ...], output: Tensor) -> int | None:
        """Whether a layer ran for all examples; the batch, if it ran once for all of them.

        Raises:
            CaptureError: it did neither.
        """
        axis = self._axis_in(unit, output)
        size = output.shape[axis] if output.ndim else 0
        if size == 1 < self._batch and axis == 0 and output.ndim > 1:
            return self._batch
        if isinstance(unit.module, nn.Embedding) and output.ndim == 2:
            self._check_ids(unit, first_tensor(args), size)
        if size % self._batch or not size:
            raise CaptureError(
                f"The layer {unit.name!r} got {size} examples, and data_id names {self._batch}. "
                "Hint: one id for each example; watch(model, batch_axis=1) where the sequence "
                "comes first."
            )
        return None

    def _check_ids(self, unit: Unit, ids: Tensor | None, size: int) -> None:
        """Numbers of positions look like those of examples."""
        if ids is None or (size == self._batch and not _is_range(ids)) or self._batch == 1:
            return
        raise CaptureError(
            f"The embedding {unit.name!r} was called with {size} numbers for {self._batch} "
            "examples, probably positions that are the same for all of them, so their gradients "
            "cannot be told apart. Hint: call it with an axis for the examples, as "
            "embedding(positions[None]), or leave it out by names=."
        )

    def _chosen(self, rows: Tensor) -> Tensor:
        return rows if self._todo is None else rows[self._todo.to(rows.device)]

    def _take(self, block: Block, pair: Pair) -> None:
        """Add the factors of one use of a block."""
        if self._todo is not None:
            pair = Pair(self._rows(pair.left), self._rows(pair.right))
        left, right = self._matrices.projection(block, _device(pair), _dtype(pair))
        small = pair.projected(left, right)
        if self._needs_rows:
            self._add_rows(block, self._scaled(small))
        if "ekfac" in self._options.statistic:
            with self._lock:
                self._pairs.setdefault(block.name, []).append(self._scaled(small))
        if "kfac" in self._options.statistic:
            self._add_moments(block, small)

    def _add_rows(self, block: Block, pair: Pair) -> None:
        """Add to the gradients of a block; what is a product of vectors is made in the store."""
        with self._lock:
            there = self._grads.get(block.name)
            if there is None and self._can_wait(pair):
                left, right = pair.left.full()[:, 0], pair.right.full()[:, 0]
                self._grads[block.name] = Outer(left, right)
            elif there is None:
                self._grads[block.name] = gradient(pair, self._room(block, pair))
            else:
                there = there.made() if isinstance(there, Outer) else there
                self._grads[block.name] = there.add_(gradient(pair))

    def _can_wait(self, pair: Pair) -> bool:
        return (
            self._rooms is not None
            and self._options.dtype == "float32"
            and not {*self._options.statistic} - {"kfac", "ekfac"}
            and _is_product(pair)
            and _device(pair).type == "cpu"
            and _dtype(pair) == torch.float32
        )

    def _scaled(self, pair: Pair) -> Pair:
        """The pair whose gradients are those of each example alone; the smaller side is scaled."""
        scale = self._settled()
        if isinstance(scale, float):
            by: Any = scale / self._factor
            if by == 1.0:
                return pair
        else:
            by = self._chosen(scale).to(_device(pair), _dtype(pair)) / self._factor
            by = by.reshape(-1, 1, 1, *(1,) * (pair.left.groups is not None))
        left, right = pair.left, pair.right
        if isinstance(left, OneHot) or (isinstance(right, Dense) and right.size < left.size):
            assert isinstance(right, Dense)
            return Pair(left, Dense(right.full() * by))
        return Pair(Dense(left.full() * by), right)

    def _room(self, block: Block, pair: Pair) -> Tensor | None:
        """Memory for the gradients of a block, from batch to batch the same."""
        if self._rooms is None or isinstance(pair.left, OneHot) or isinstance(pair.right, OneHot):
            return None
        key = (block.name, pair.batch, _device(pair), _dtype(pair))
        if key not in self._rooms:
            shape = (pair.batch, *pair.shape)
            self._rooms[key] = torch.empty(shape, device=key[2], dtype=key[3])
        return self._rooms[key]

    @property
    def _needs_rows(self) -> bool:
        factors = {"kfac", "ekfac"}  # these need no gradients, but what they are made of
        return "grad" in self._options.saved or bool({*self._options.statistic} - factors)

    def _rows(self, factor: Dense | OneHot) -> Dense | OneHot:
        if isinstance(factor, OneHot):
            weights = None if factor.weights is None else self._chosen(factor.weights)
            return OneHot(self._chosen(factor.ids), factor.size, weights)
        return Dense(self._chosen(factor.array), factor.one)

    def _add_moments(self, block: Block, pair: Pair) -> None:
        """The second moments of both sides; that of the outputs with the scale of the loss."""
        if self._options.precision == "float64":
            pair = Pair(_double(pair.left), _double(pair.right))
        positions = pair.left.positions * pair.batch
        mask = None if self._mask is None else self._chosen(self._mask)
        if mask is not None and mask.shape[1:] == (pair.left.positions,):
            pair, positions = pair.masked(mask), int(mask.sum())
        scale = self._settled()
        inputs, outputs = pair.right, pair.left
        if block.inputs == "left":
            inputs, outputs = outputs, inputs
        if isinstance(scale, float):
            total = outputs.moment() * (scale / self._factor) ** 2
        else:
            own = self._chosen(scale).to(_device(pair)) / self._factor
            total = outputs.scaled(own.to(_dtype(pair))).moment()
        sides = (inputs.moment(), total)
        left, right = sides if block.inputs == "left" else sides[::-1]
        with self._lock:
            self._moments.append((f"{LEFT}/{block.name}", left, positions))
            self._moments.append((f"{RIGHT}/{block.name}", right, positions))

    # -- the end of the batch ---------------------------------------------------------------------

    def rows(self, examples: int) -> dict[str, Any]:
        """All logs of the batch by name, for the ``examples`` that were to be logged.

        Raises:
            CaptureError: no gradient was seen at all.
        """
        logs: dict[str, Any] = dict(self._logs)
        if self.hooks._backward is not None and not self.hooks.gradients:
            raise CaptureError(
                "No gradient of a watched layer was seen in this batch. Hint: run the forward "
                "pass and loss.backward() inside of `with run(data_id=ids):`, not under "
                "torch.no_grad()."
            )
        if "grad" in self._options.log and self._needs_rows:
            for block in self._watched.blocks:
                grad = self._grads.pop(block.name, None)
                if grad is None:  # not used in this batch
                    grad = torch.zeros((examples, *block.stored))
                logs[f"grad/{block.name}"] = grad
        return logs

    def add_statistics(self, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics."""
        add, wanted = self._statistics, set(self._options.statistic)
        for name, total, count in self._moments:
            add.add(name, total, count)
        self._moments.clear()
        for name, rows in logs.items():
            if wanted & {"mean", "variance"}:
                add.add_rows(name, rows)
            if "covariance" in wanted:
                kind = name.partition("/")[0]
                flat = rows.reshape(len(rows), -1) if kind == "grad" else _by_position(rows)
                flat = flat.to(getattr(torch, self._options.precision))
                add.add(f"covariance:{name}", flat.mT @ flat, len(flat))
                add.add(f"mean:{name}", flat.sum(0), len(flat))
        if "ekfac" in wanted:
            for block in self._watched.blocks:
                pairs = self._pairs.pop(block.name, [])
                add.add(f"ekfac/{block.name}", self._squares(block, pairs), examples)

    def _squares(self, block: Block, pairs: list[Pair]) -> Tensor:
        """The sum of squares of the gradients of a block in its eigenbasis."""
        if not pairs:  # not used in this batch
            return torch.zeros(block.stored)
        if len(pairs) == 1 and _is_product(pairs[0]):
            return self._matrices.squares_of(block, pairs[0])
        rows = gradient(pairs[0])
        for pair in pairs[1:]:
            rows = rows + gradient(pair)
        return self._matrices.squares(block, rows)

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """What of the batch goes into the store."""
        columns: dict[str, Any] = {}
        for name, rows in logs.items():
            if name.partition("/")[0] not in self._options.saved:
                continue
            whole = isinstance(rows, Outer)
            columns.update({name: rows} if whole else encode(name, rows, self._options.dtype))
        return columns


def _is_product(pair: Pair) -> bool:
    """Whether gradients are products of two vectors: one position, and no groups."""
    dense = isinstance(pair.left, Dense) and isinstance(pair.right, Dense)
    return dense and pair.left.positions == 1 and pair.left.groups is None


def _double(factor: Dense | OneHot) -> Dense | OneHot:
    if isinstance(factor, OneHot):
        weights = None if factor.weights is None else factor.weights.double()
        return OneHot(factor.ids, factor.size, weights)
    return Dense(factor.array.double(), factor.one)


def _is_range(ids: Tensor) -> bool:
    return ids.ndim == 1 and torch.equal(ids, torch.arange(len(ids), device=ids.device))


def _by_position(rows: Tensor) -> Tensor:
    """``[batch, ..., n]`` as ``[all positions, n]``."""
    return rows.reshape(-1, rows.shape[-1]) if rows.ndim > 1 else rows.reshape(-1, 1)


def _device(pair: Pair) -> torch.device:
    factor = pair.right if isinstance(pair.left, OneHot) else pair.left
    assert isinstance(factor, Dense)
    device: torch.device = factor.array.device
    return device


def _dtype(pair: Pair) -> torch.dtype:
    factor = pair.right if isinstance(pair.left, OneHot) else pair.left
    assert isinstance(factor, Dense)
    dtype: torch.dtype = factor.array.dtype
    return dtype
