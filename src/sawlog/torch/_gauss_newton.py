"""The exact Gauss-Newton matrix of a small model, over all of its parameters together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from sawlog._arrays import to_numpy
from sawlog._validate import one_of
from sawlog.curvature import ConjugateGradients, Curvature, Joint
from sawlog.errors import ArgumentError
from sawlog.run_files._blocks import Block
from sawlog.torch._backend import TorchBackend
from sawlog.torch._gauss_newton_products import products_of
from sawlog.torch._model._fingerprint import Fingerprint
from sawlog.torch._model._names import bare
from sawlog.torch._model._search import find_watched
from sawlog.torch._rows._block_matrix import block_matrix
from sawlog.torch._run import Run

MOST = 20_000
CHUNK = 256 * 2**20
STRIPE = 1024

Parameters = dict[str, Tensor]


def gauss_newton(
    model: Run | nn.Module,
    loader: Iterable[Any],
    loss: str = "cross_entropy",
    *,
    preconditioner: Curvature | None = None,
    **options: Any,
) -> Curvature:
    """Compute the exact Gauss-Newton matrix, for :func:`sawlog.influence.attribute`.

    It is the mean over examples of ``J^T A J``, with the Jacobian ``J`` of the outputs with respect
    to all parameters, and the second derivative ``A`` of the loss with respect to the outputs. It
    couples the layers, takes the square of the number of parameters in memory, and its cube in
    time: it is for small models. It does not depend on the labels. Rows of other weights than
    those that it was computed with are refused.

    Args:
        model: a run without compression, for its watched layers; or a model, for all of it. It is
            used in its current mode; usually call ``model.eval()`` first.
        loader: batches of inputs, or tuples that begin with them.
        loss: ``"cross_entropy"`` of outputs ``[batch, classes]``, or ``"mse"``, the mean of the
            squares over outputs, each as that of an example alone.
        preconditioner: a fitted curvature of the same layers, such as
            ``sawlog.influence.curvature_for(Logs(run.store_path), "ekfac")``. The matrix is then
            not formed: scoring solves for each query by conjugate gradients, which takes the
            inputs of ``loader`` in memory and a pass over them in each iteration.
        options: with a preconditioner, ``iterations`` and ``tolerance`` of
            :class:`sawlog.curvature.ConjugateGradients`.

    Raises:
        ArgumentError: the model is too large, its gradients are compressed, its outputs have
            another shape, there are no examples, or an option is not valid.

    >>> import torch
    >>> model = torch.nn.Linear(2, 3)
    >>> gauss_newton(model, [torch.ones(4, 2)], "cross_entropy")
    Curvature('gauss-newton', 1 layers)
    """
    one_of("loss", loss, _ROOTS)
    network, blocks = watched_of(model)
    if preconditioner is not None:
        return _solver(network, blocks, loader, loss, preconditioner, options)
    if options:
        raise ArgumentError(f"{', '.join(options)} needs preconditioner=.")
    size = sum(block.elements for block in blocks)
    if size > MOST:
        raise ArgumentError(
            f"The exact matrix of {size:,} parameters would take {8e-9 * size**2:.0f} GB; the "
            f'limit is {MOST:,} parameters. Hint: curvature="ekfac", or watch fewer layers.'
        )
    provenance = Fingerprint(bare(network)).now()
    rows = _rows_of(network, blocks, _ROOTS[loss])
    device = next(network.parameters()).device
    total = torch.zeros(size, size, dtype=torch.float64, device=device)
    count = 0
    for batch in loader:
        inputs = _inputs(batch).to(device)
        count += len(inputs)
        outputs = _width(network, inputs) if len(inputs) else 1
        if len(inputs):
            _check_outputs(outputs, loss)
        for part in inputs.split(max(1, CHUNK // (8 * size * outputs))):
            if len(part):
                _add(total, rows(part).flatten(0, 1))
    if not count:
        raise ArgumentError(
            "The loader has no examples. Hint: an iterator that was read before is empty."
        )
    total = (total.triu() + total.triu(1).mT) / count
    shapes = {block.name: block.shape for block in blocks}
    joint = Joint(to_numpy(total), shapes)
    return Curvature("gauss-newton", {}, joint, count, [provenance.to_json()])


def _solver(
    network: nn.Module,
    blocks: Sequence[Block],
    loader: Iterable[Any],
    loss: str,
    preconditioner: Curvature,
    options: dict[str, Any],
) -> ConjugateGradients:
    """Return the matrix as its products with vectors."""
    device = next(network.parameters()).device
    batches = [inputs for batch in loader if len(inputs := _inputs(batch).to(device))]
    if not batches:
        raise ArgumentError(
            "The loader has no examples. Hint: an iterator that was read before is empty."
        )
    _check_outputs(_width(network, batches[0]), loss)
    provenance = Fingerprint(bare(network)).now()
    return ConjugateGradients(
        products_of(network, blocks, batches, loss),
        {block.name: block.shape for block in blocks},
        preconditioner,
        kind="gauss-newton",
        count=sum(map(len, batches)),
        provenance=[provenance.to_json()],
        **options,
    )


def _check_outputs(outputs: int, loss: str) -> None:
    if outputs == 1 and loss == "cross_entropy":
        raise ArgumentError('The cross entropy of one class is 0. Hint: loss="mse".')


def watched_of(model: Run | nn.Module) -> tuple[nn.Module, Sequence[Block]]:
    """Return the model of a run and its blocks, or all of a model.

    Raises:
        ArgumentError: The run compresses gradients.
    """
    if not isinstance(model, Run):
        return model, find_watched(model).blocks
    backend = model._watched_model()
    assert isinstance(backend, TorchBackend)
    if model.options.compress is not None:
        raise ArgumentError(
            "Second moments and the exact Gauss-Newton matrix need whole gradients, and the run "
            "compresses them. "
            "Hint: run.setup(...) without compress."
        )
    return backend.model, backend.blocks


def _inputs(batch: Any) -> Tensor:
    first = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(first, Tensor):
        raise ArgumentError(
            f"A batch must be a tensor of inputs, or a tuple that begins with it; got "
            f"{type(batch).__name__}. Hint: gauss_newton(run, ((b['x'], b['y']) for b in loader))."
        )
    return first


def _width(network: nn.Module, inputs: Tensor) -> int:
    """Return the number of outputs of an example."""
    with torch.no_grad():
        outputs = network(inputs[:1])
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        what = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ArgumentError(f"The outputs of the model must be [batch, outputs]; got {what}.")
    return int(outputs.shape[1])


# -- rows whose squares add up to the matrix ------------------------------------------------------


def _cross_entropy(outputs: Tensor) -> Tensor:
    """Return ``R`` with ``R^T R = diag(p) - p p^T``."""
    p = outputs.softmax(0)
    return torch.diag(p.sqrt()) - p.sqrt()[:, None] * p[None, :]


def _mse(outputs: Tensor) -> Tensor:
    return (2 / len(outputs)) ** 0.5 * torch.eye(
        len(outputs), dtype=outputs.dtype, device=outputs.device
    )


_ROOTS: Mapping[str, Callable[[Tensor], Tensor]] = {"cross_entropy": _cross_entropy, "mse": _mse}


def _rows_of(
    network: nn.Module, blocks: Sequence[Block], root: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return a function from inputs to ``R J``, ``[batch, outputs, elements]``, in float64."""
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    exact = {name: _wide(tensor.detach()) for name, tensor in state.items()}
    ours = {name: exact[name] for block in blocks for name in block.parameters}

    def one(x: Tensor) -> Tensor:
        def outputs(parameters: Parameters) -> Tensor:
            batch: Tensor = functional_call(network, {**exact, **parameters}, (x[None],))
            return batch[0]

        found: Any = vjp(outputs, ours)
        out, back = found
        (grads,) = vmap(back)(root(out))
        return torch.cat([block_matrix(block, grads).flatten(1) for block in blocks], 1)

    each = vmap(one)
    return lambda inputs: each(_wide(inputs))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _add(total: Tensor, rows: Tensor) -> None:
    """Add ``rows^T rows`` to the upper triangle, in stripes."""
    for start in range(0, total.shape[0], STRIPE):
        stripe = slice(start, start + STRIPE)
        total[stripe, start:].addmm_(rows[:, stripe].mT, rows[:, start:])
