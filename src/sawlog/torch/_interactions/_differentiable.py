"""Whether all that examples do to a loss is in its gradient.

Then the gradients of a proof show every interaction, and nothing has to be replayed. It is so if
every operation on values of the examples is differentiated with respect to all of them, and its
formula is the derivative: a comparison, a rank, a rounded value, a detached tensor, or an operation
of the user, leaves no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sawlog.torch._interactions._flow import Flow, name_of, needed
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._replacement import ExampleTensor
from sawlog.torch._interactions._tape import Operation, Ref, leaves

_SMOOTH = {
    "_log_softmax", "_reshape_alias", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax", "_to_copy", "_unsafe_view", "add", "addbmm", "addcdiv", "addcmul", "addmm",
    "alias", "as_strided", "avg_pool1d", "avg_pool2d", "baddbmm", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "bmm", "cat", "clone", "constant_pad_nd", "convolution",
    "copy_", "cos", "cumsum", "diagonal", "div", "elu", "embedding", "erf", "exp", "expand",
    "expm1", "flip", "gather", "gelu", "hardswish", "huber_loss", "index", "index_add", "index_put",
    "index_select", "leaky_relu", "linalg_vector_norm", "log", "log1p", "log_sigmoid_forward",
    "logsumexp", "masked_fill", "max_pool2d_with_indices", "mean", "mish", "mm", "mse_loss", "mul",
    "mv", "native_dropout", "native_group_norm", "native_layer_norm", "neg", "nll_loss2d_forward",
    "nll_loss_forward", "permute", "pow", "reciprocal", "relu", "repeat", "roll", "rsqrt", "rsub",
    "scatter_add", "select", "sigmoid", "silu", "sin", "slice", "smooth_l1_loss", "softplus",
    "split", "split_with_sizes", "sqrt", "square", "squeeze", "stack", "std", "sub", "sum", "t",
    "tanh", "transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "upsample_bilinear2d",
    "upsample_nearest2d", "var", "view", "where", "_adaptive_avg_pool2d",
}  # fmt: skip
"""Operations whose formulas are derivatives with respect to all that they take."""

_WITH_INDICES = {
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "max_pool2d_with_indices", "native_dropout",
}  # fmt: skip
"""Those that also return integers or masks, which only their backward pass uses."""

_EXTREMES = {
    "amax", "amin", "aminmax", "clamp", "clamp_max", "clamp_min", "fmax", "fmin", "max", "maximum",
    "min", "minimum",
}  # fmt: skip
"""Operations that depend on few of the values; other examples may have the same ones."""

_BATCH_NORMS = {"native_batch_norm": 5, "cudnn_batch_norm": 5}
"""Batch norms, with the index of the argument that says whether they are in train mode."""


def leaves_gaps(loss: TapedLoss, tensors: Sequence[ExampleTensor]) -> bool:
    """Return whether values of examples may change a loss in a way that its gradient lacks.

    Args:
        loss: the loss.
        tensors: those of which it is known which elements belong to which example.
    """
    return any(not _is_smooth(*each) for each in _dependent(loss, tensors))


def has_decisions(loss: TapedLoss, tensors: Sequence[ExampleTensor]) -> bool:
    """Return whether the loss may depend on values that are compared, sorted or rounded."""
    return any(
        name_of(operation) in _EXTREMES
        or (operation.decides and name_of(operation) not in _WITH_INDICES)
        for operation, _ in _dependent(loss, tensors)
    )


def _dependent(
    loss: TapedLoss, tensors: Sequence[ExampleTensor]
) -> Iterator[tuple[Operation, Sequence[Ref]]]:
    """Yield the operations from the example tensors to the loss, with what they take from them."""
    flow, wanted = Flow(loss.tape), needed(loss, loss.roots)[0]
    ordered = sorted(tensors, key=lambda each: each.position, reverse=True)
    for index, operation in enumerate(loss.tape.operations[: loss.end]):
        while ordered and ordered[-1].position <= index:
            flow.add(ordered.pop().number)
        every = leaves((operation.args, operation.kwargs))
        given = [each for each in every if isinstance(each, Ref) and flow.has(each.number)]
        if flow.follow(index, operation) and index in wanted:
            yield operation, given


def _is_smooth(operation: Operation, given: Sequence[Ref]) -> bool:
    """Return whether an operation is differentiated with respect to the examples that it takes.

    Without such values, it depends on a Python number that was computed from them.
    """
    name = name_of(operation)
    if operation.call.namespace != "aten" or not operation.grad or not given:
        return False
    if not all(each.grad for each in given) or next(operation.numbers(), None) is not None:
        return False
    if name in _BATCH_NORMS:
        argument = _BATCH_NORMS[name]
        return len(operation.args) > argument and operation.args[argument] is False
    if operation.kwargs.get("rounding_mode") is not None:
        return False
    if operation.decides and name not in _WITH_INDICES:
        return False
    return name in _SMOOTH or (name.endswith("_") and name[:-1] in _SMOOTH)
