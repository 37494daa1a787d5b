"""A table of modules and calls; each is held against the oracle, by its rule and by the fallback.

A case is a function without arguments, so that random numbers are drawn when it runs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .oracle import Call

CASES: dict[str, Callable[[], Call]] = {}

FALLBACK_CANNOT: set[str] = set()
"""Cases in which the examples cannot be split by ``vmap``."""


def case(function: Callable[[], Call]) -> Callable[[], Call]:
    CASES[function.__name__] = function
    return function


def not_for_the_fallback(function: Callable[[], Call]) -> Callable[[], Call]:
    FALLBACK_CANNOT.add(function.__name__)
    return function


def table(prefix: str, calls: dict[str, Callable[[], Call]]) -> None:
    CASES.update({f"{prefix}_{name}": make for name, make in calls.items()})


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def double(module: nn.Module) -> nn.Module:
    """In float64, with parameters that are all different (a scale of 1 hides mistakes)."""
    module = module.double()
    with torch.no_grad():
        for value in module.parameters():
            value += 0.5 * torch.randn_like(value)
        for name, value in module.named_buffers():
            if name.endswith("running_mean"):
                value.normal_()
            if name.endswith("running_var"):
                value.uniform_(0.5, 2)
    return module


# ---- linear

table(
    "linear",
    {
        "plain": lambda: Call(double(nn.Linear(5, 4)), (normal(3, 5),)),
        "positions": lambda: Call(double(nn.Linear(5, 4)), (normal(3, 6, 5),)),
        "more_axes": lambda: Call(double(nn.Linear(5, 4)), (normal(3, 2, 3, 5),)),
        "without_bias": lambda: Call(double(nn.Linear(5, 4, bias=False)), (normal(3, 6, 5),)),
        "keyword": lambda: Call(double(nn.Linear(5, 4)), (), {"input": normal(3, 6, 5)}),
        "sequence_first": lambda: Call(double(nn.Linear(5, 4)), (normal(6, 3, 5),), axis=1),
        "longer_batch": lambda: Call(double(nn.Linear(5, 4)), (normal(12, 5),), each=4),
        "longer_batch_with_positions": lambda: Call(
            double(nn.Linear(5, 4)), (normal(6, 7, 5),), each=2
        ),
        "one_example": lambda: Call(double(nn.Linear(5, 4)), (normal(1, 6, 5),), batch=1),
        "no_positions": lambda: Call(double(nn.Linear(5, 4)), (normal(3, 0, 5),)),
        "not_contiguous": lambda: Call(
            double(nn.Linear(5, 4)), (normal(5, 6, 3).permute(2, 1, 0),)
        ),
        "subclass": lambda: Call(
            double(nn.modules.linear.NonDynamicallyQuantizableLinear(5, 4)), (normal(3, 5),)
        ),
        "bilinear": lambda: Call(double(nn.Bilinear(2, 3, 4)), (normal(3, 5, 2), normal(3, 5, 3))),
        "bilinear_keywords": lambda: Call(
            double(nn.Bilinear(2, 3, 4, bias=False)),
            (),
            {"input2": normal(3, 3), "input1": normal(3, 2)},
        ),
    },
)


@case
def linear_flattened_in_a_sequence_first_model() -> Call:
    return Call(
        double(nn.Linear(5, 4)), (normal(12, 5),), each=4, axis=1, axes={0: 0}, out=0, inner=True
    )


# ---- convolutions


def conv(
    kind: type[nn.Module], shape: tuple[int, ...], *args: object, **options: object
) -> Callable[[], Call]:
    return lambda: Call(double(kind(*args, **options)), (normal(*shape),))


table(
    "conv",
    {
        "1d": conv(nn.Conv1d, (3, 2, 9), 2, 4, 3),
        "1d_dilated": conv(nn.Conv1d, (3, 2, 12), 2, 4, 3, stride=2, padding=3, dilation=2),
        "1d_same": conv(nn.Conv1d, (3, 2, 9), 2, 4, 4, padding="same", dilation=3),
        "2d": conv(nn.Conv2d, (3, 2, 6, 7), 2, 4, 3),
        "2d_same": conv(nn.Conv2d, (3, 2, 6, 7), 2, 4, (2, 3), padding="same", dilation=(1, 2)),
        "2d_valid": conv(nn.Conv2d, (3, 2, 6, 7), 2, 4, 3, padding="valid", stride=(2, 1)),
        "2d_groups": conv(nn.Conv2d, (3, 4, 6, 7), 4, 6, 3, groups=2, padding=1),
        "2d_depthwise": conv(nn.Conv2d, (3, 4, 6, 7), 4, 8, 3, groups=4, stride=2),
        "2d_without_bias": conv(nn.Conv2d, (3, 4, 6, 7), 4, 6, 3, groups=2, bias=False),
        "2d_leftover": conv(nn.Conv2d, (3, 2, 8, 8), 2, 3, 3, stride=4),
        "2d_pointwise": conv(nn.Conv2d, (3, 2, 4, 5), 2, 3, 1),
        "2d_circular": conv(
            nn.Conv2d, (3, 2, 6, 7), 2, 4, 3, padding=(1, 2), padding_mode="circular"
        ),
        "2d_reflect": conv(
            nn.Conv2d, (3, 2, 6, 7), 2, 4, (2, 5), padding="same", padding_mode="reflect"
        ),
        "2d_replicate": conv(
            nn.Conv2d, (3, 2, 6, 7), 2, 4, 3, padding=2, padding_mode="replicate", stride=2
        ),
        "3d": conv(
            nn.Conv3d, (3, 2, 4, 5, 4), 2, 4, (1, 2, 3), padding=(0, 1, 1), dilation=(2, 2, 1)
        ),
        "3d_groups": conv(nn.Conv3d, (3, 4, 4, 5, 4), 4, 2, 2, groups=2, stride=(1, 2, 1)),
        "2d_keyword": lambda: Call(double(nn.Conv2d(2, 4, 3)), (), {"input": normal(3, 2, 5, 5)}),
        "2d_longer_batch": lambda: Call(
            double(nn.Conv2d(4, 4, 3, groups=2)), (normal(6, 4, 5, 5),), each=2
        ),
        "transposed_1d": conv(nn.ConvTranspose1d, (3, 2, 5), 2, 4, 3),
        "transposed_2d": conv(
            nn.ConvTranspose2d, (3, 2, 4, 5), 2, 3, 3, stride=2, padding=1, output_padding=1
        ),
        "transposed_2d_groups": conv(
            nn.ConvTranspose2d, (3, 4, 4, 3), 4, 6, (2, 3), groups=2, dilation=2, stride=(1, 3)
        ),
        "transposed_2d_much_padding": conv(
            nn.ConvTranspose2d, (3, 2, 6, 6), 2, 3, 2, padding=2, stride=2, output_padding=1
        ),
        "transposed_1d_dilated_more": conv(
            nn.ConvTranspose1d, (3, 2, 4), 2, 3, 2, dilation=3, output_padding=2
        ),
        "transposed_2d_without_bias": conv(nn.ConvTranspose2d, (3, 2, 4, 4), 2, 3, 3, bias=False),
        "transposed_3d": conv(
            nn.ConvTranspose3d,
            (3, 4, 2, 3, 2),
            4,
            2,
            2,
            groups=2,
            stride=2,
            output_padding=(0, 1, 0),
        ),
        "transposed_output_size": lambda: Call(
            double(nn.ConvTranspose1d(2, 3, 3, stride=3)), (normal(3, 2, 4), [14])
        ),
    },
)


@case
def conv_2d_in_a_sequence_first_model() -> Call:
    module = double(nn.Conv2d(2, 4, 2))
    return Call(module, (normal(6, 2, 4, 4),), each=2, axis=1, axes={0: 0}, out=0, inner=True)


# ---- embeddings


def ids(*shape: int, below: int = 7) -> Tensor:
    return torch.randint(0, below, shape)


table(
    "embedding",
    {
        "plain": lambda: Call(double(nn.Embedding(7, 4)), (ids(3, 6),)),
        "one_id": lambda: Call(double(nn.Embedding(7, 4)), (ids(3),)),
        "int32": lambda: Call(double(nn.Embedding(7, 4)), (ids(3, 6).int(),)),
        "more_axes": lambda: Call(double(nn.Embedding(7, 4)), (ids(3, 2, 5),)),
        "keyword": lambda: Call(double(nn.Embedding(7, 4)), (), {"input": ids(3, 6)}),
        "longer_batch": lambda: Call(double(nn.Embedding(7, 4)), (ids(6, 5),), each=2),
        "sequence_first": lambda: Call(double(nn.Embedding(7, 4)), (ids(6, 3),), axis=1),
        "padding": lambda: Call(double(nn.Embedding(3, 4, padding_idx=1)), (ids(3, 6, below=3),)),
    },
)


@case
def embedding_sparse() -> Call:
    return Call(double(nn.Embedding(7, 4, sparse=True)), (ids(3, 6),))


@case
def bag_sum() -> Call:
    return Call(double(nn.EmbeddingBag(7, 4, mode="sum")), (ids(3, 6),))


@case
def bag_mean() -> Call:
    return Call(double(nn.EmbeddingBag(7, 4, mode="mean")), (ids(3, 6),))


@case
def bag_mean_with_padding() -> Call:
    bags = torch.tensor([[0, 1, 1, 2], [1, 1, 1, 1], [2, 2, 0, 3]])
    return Call(double(nn.EmbeddingBag(7, 4, mode="mean", padding_idx=1)), (bags,))


@case
def bag_with_weights() -> Call:
    weights = {"per_sample_weights": normal(3, 6)}
    return Call(double(nn.EmbeddingBag(7, 4, mode="sum")), (ids(3, 6),), weights)


# ---- normalisations

table(
    "norm",
    {
        "layer": lambda: Call(double(nn.LayerNorm(5)), (normal(3, 6, 5),)),
        "layer_no_positions": lambda: Call(double(nn.LayerNorm(5)), (normal(3, 5),)),
        "layer_two_axes": lambda: Call(
            double(nn.LayerNorm((4, 5), eps=0.1)), (normal(3, 2, 4, 5),)
        ),
        "layer_without_bias": lambda: Call(double(nn.LayerNorm(5, bias=False)), (normal(3, 6, 5),)),
        "layer_sequence_first": lambda: Call(double(nn.LayerNorm(5)), (normal(6, 3, 5),), axis=1),
        "layer_keyword": lambda: Call(double(nn.LayerNorm(5)), (), {"input": normal(3, 5)}),
        "rms": lambda: Call(double(nn.RMSNorm(5)), (normal(3, 6, 5),)),
        "rms_eps": lambda: Call(double(nn.RMSNorm((2, 5), eps=0.3)), (normal(3, 6, 2, 5),)),
        "rms_keyword": lambda: Call(double(nn.RMSNorm(5)), (), {"x": normal(3, 6, 5)}),
        "group": lambda: Call(double(nn.GroupNorm(2, 6)), (normal(3, 6, 4, 5),)),
        "group_no_places": lambda: Call(double(nn.GroupNorm(2, 6)), (normal(3, 6),)),
        "group_longer_batch": lambda: Call(double(nn.GroupNorm(3, 6)), (normal(6, 6, 4),), each=2),
        "instance_1d": lambda: Call(double(nn.InstanceNorm1d(4, affine=True)), (normal(3, 4, 6),)),
        "instance_2d": lambda: Call(
            double(nn.InstanceNorm2d(4, affine=True)), (normal(3, 4, 3, 5),)
        ),
        "instance_3d": lambda: Call(
            double(nn.InstanceNorm3d(2, affine=True)), (normal(3, 2, 3, 2, 4),)
        ),
        "instance_eval": lambda: Call(
            double(nn.InstanceNorm1d(4, affine=True)).eval(), (normal(3, 4, 6),)
        ),
        "instance_eps": lambda: Call(
            double(nn.InstanceNorm1d(4, affine=True, eps=0.3)), (normal(3, 4, 6),)
        ),
        "group_eps": lambda: Call(double(nn.GroupNorm(2, 6, eps=0.3)), (normal(3, 6, 4),)),
        "batch_eps": lambda: Call(double(nn.BatchNorm1d(4, eps=0.3)).eval(), (normal(3, 4),)),
        "instance_running": lambda: Call(
            double(nn.InstanceNorm1d(4, affine=True, track_running_stats=True)).eval(),
            (normal(3, 4, 6),),
        ),
        "batch_1d": lambda: Call(double(nn.BatchNorm1d(4)).eval(), (normal(3, 4),)),
        "batch_1d_places": lambda: Call(double(nn.BatchNorm1d(4)).eval(), (normal(3, 4, 5),)),
        "batch_2d": lambda: Call(double(nn.BatchNorm2d(4)).eval(), (normal(3, 4, 5, 2),)),
        "batch_3d": lambda: Call(double(nn.BatchNorm3d(2)).eval(), (normal(3, 2, 3, 2, 2),)),
        "batch_sync": lambda: Call(double(nn.SyncBatchNorm(4)).eval(), (normal(3, 4, 5),)),
    },
)


@case
def norm_instance_running_in_training() -> Call:
    module = double(nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    return Call(module, (normal(3, 4, 6),))


# ---- attention


def attention(**options: object) -> nn.Module:
    module = nn.MultiheadAttention(6, 2, **{"batch_first": True, **options})
    return double(module)


def crossing(options: dict[str, object], *, source: int = 5, **kwargs: object) -> Call:
    """Queries of length 4, keys and values of another."""
    key = normal(3, source, options.get("kdim", 6))
    value = normal(3, source, options.get("vdim", 6))
    return Call(attention(**options), (normal(3, 4, 6), key, value), kwargs)


def self_attention(**kwargs: object) -> Call:
    x = normal(3, 4, 6)
    return Call(attention(), (x, x, x), kwargs, axes={"attn_mask": None})


def padded(*shape: int) -> Tensor:
    """True where a key is left out, never all of them."""
    mask = torch.rand(*shape) < 0.4
    mask[..., 0] = False
    return mask


def causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


table(
    "attention",
    {
        "self": self_attention,
        "self_by_sdpa": lambda: self_attention(need_weights=False),
        "causal": lambda: self_attention(attn_mask=causal(4), is_causal=True, need_weights=False),
        "causal_with_weights": lambda: self_attention(attn_mask=causal(4), is_causal=True),
        "causal_by_hint_only": lambda: self_attention(attn_mask=normal(4, 4), is_causal=True),
        "causal_and_padding": lambda: self_attention(
            attn_mask=causal(4), is_causal=True, need_weights=False, key_padding_mask=padded(3, 4)
        ),
        "causal_mask_alone": lambda: self_attention(attn_mask=causal(4), need_weights=False),
        "mask_and_padding": lambda: self_attention(
            attn_mask=normal(4, 4), key_padding_mask=normal(3, 4), need_weights=False
        ),
        "float_mask": lambda: self_attention(attn_mask=normal(4, 4)),
        "cross": lambda: crossing({}),
        "cross_shorter": lambda: crossing({}, source=2),
        "without_bias": lambda: crossing({"bias": False}),
        "kdim_vdim": lambda: crossing({"kdim": 3, "vdim": 5}),
        "kdim_without_bias": lambda: crossing({"kdim": 3, "bias": False}),
        "bias_kv": lambda: crossing({"add_bias_kv": True}, key_padding_mask=padded(3, 5)),
        "zero_attn": lambda: crossing(
            {"add_zero_attn": True, "add_bias_kv": True}, key_padding_mask=padded(3, 5)
        ),
        "padding": lambda: crossing({}, key_padding_mask=padded(3, 5)),
        "padding_by_sdpa": lambda: crossing({}, key_padding_mask=padded(3, 5), need_weights=False),
        "dropout_in_eval": lambda: _dropout_in_eval(),
        "value_is_key": lambda: _value_is_key(),
        "key_is_query": lambda: _key_is_query(),
    },
)


def _dropout_in_eval() -> Call:
    x = normal(3, 4, 6)
    return Call(attention(dropout=0.5).eval(), (x, x, x))


def _key_is_query() -> Call:
    x = normal(3, 4, 6)
    return Call(attention(), (x, x, normal(3, 4, 6)))


def _value_is_key() -> Call:
    memory = normal(3, 5, 6)
    return Call(attention(), (normal(3, 4, 6), memory, memory))


@case
def attention_by_keyword() -> Call:
    x = normal(3, 4, 6)
    given = {"value": x, "key": x, "query": x, "need_weights": False}
    return Call(attention(), (), given)


@case
@not_for_the_fallback  # the examples of the masks are along another axis
def attention_sequence_first() -> Call:
    query, memory = normal(4, 3, 6), normal(5, 3, 6)
    masks = {"key_padding_mask": padded(3, 5), "attn_mask": padded(4, 5) & padded(4, 5)}
    axes = {"key_padding_mask": 0, "attn_mask": None}
    module = attention(batch_first=False)
    return Call(module, (query, memory, memory), masks, axis=1, axes=axes)


@case
@not_for_the_fallback  # there are heads as well along the axis of the examples
def attention_mask_by_head() -> Call:
    return crossing({"add_zero_attn": True}, attn_mask=padded(6, 4, 5))


@case
def attention_in_windows() -> Call:
    x = normal(6, 4, 6)
    return Call(attention(), (x, x, x), each=2)
