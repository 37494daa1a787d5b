"""Every layer rule against a batch of one."""

# ruff: noqa: F401  (fixtures are imported)

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from sawlog.factored import gradient
from sawlog.torch._layers import Rule, Use, general, rule_for
from sawlog.torch._layers import _registry as registry
from tests.thorough import often

from .cases import CASES, FALLBACK_CANNOT, attention, double, ids, normal
from .layer_modules import examples, seeded
from .oracle import Call, compare, found, output_weights, use_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


# ---- the table


def test_the_table_is_whole():
    assert len(CASES) > 80
    assert set(CASES) >= FALLBACK_CANNOT
    kinds = {type(make().module) for make in CASES.values()}
    known = {kind for kind in registry._RULES if isinstance(kind, type)}
    assert {kind for kind in known if kind.__module__.startswith("torch.")} <= kinds


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_the_gradients_of_single_examples(name):
    call = CASES[name]()
    compare(rule_for(call.module), call)


@pytest.mark.parametrize("name", sorted(set(CASES) - FALLBACK_CANNOT)[:: often(3, 1)])
def test_the_fallback_gives_the_gradients_of_single_examples(name):
    call = CASES[name]()
    compare(general(whole=True), call)


@pytest.mark.parametrize("name", ["linear_positions", "conv_2d_groups", "attention_cross"])
def test_the_comparison_can_fail(name):
    call = CASES[name]()
    rule = rule_for(call.module)
    assert rule is not None

    class Wrong(Rule):
        def parts(self, module):
            return rule.parts(module)

        def pairs(self, module, use):
            pairs = dict(rule.pairs(module, use))
            last = list(pairs)[-1]
            return pairs | {last: pairs[last].scaled(torch.tensor([1.0, 1.0, 1.000001]).double())}

    with pytest.raises(AssertionError):
        compare(Wrong(), call)


# ---- random shapes


@st.composite
def convolutions(draw: st.DrawFn) -> Call:
    axes = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel, stride, dilation = per_axis(1, 3), per_axis(1, 3), per_axis(1, 2)
    size = per_axis(3, 7)
    mode = draw(st.sampled_from(["zeros", "zeros", "circular", "reflect", "replicate"]))
    padding = draw(st.sampled_from(["same", "valid", None]))
    if padding is None:
        padding = per_axis(0, 2)
    elif padding == "same":
        stride = (1,) * axes
    channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    module = kind(
        *channels,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    batch, each = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return Call(double(module), (normal(batch * each, channels[0], *size),), batch=batch, each=each)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> Call:
    axes = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel, stride, dilation = per_axis(1, 3), per_axis(1, 3), per_axis(1, 2)
    more = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1]
    module = kind(
        *channels,
        kernel,
        stride=stride,
        padding=per_axis(0, 2),
        output_padding=more,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
    )
    batch = draw(st.integers(1, 3))
    return Call(double(module), (normal(batch, channels[0], *per_axis(1, 4)),), batch=batch)


def possible(call: Call) -> bool:
    try:
        call.module(*call.args)
    except RuntimeError:  # a kernel larger than its input, and the like
        return False
    return True


@examples(30)
@given(convolutions())
def test_random_convolutions(call):
    assume(possible(call))
    compare(rule_for(call.module), call)


@examples(20)
@given(transposed_convolutions())
def test_random_transposed_convolutions(call):
    assume(possible(call))
    compare(rule_for(call.module), call)


@examples(15)
@given(
    st.lists(st.integers(1, 4), max_size=2),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_random_linear_layers(middle, batch, size, bias, sequence_first):
    shape = [batch, *middle, size]
    axis = 1 if sequence_first and middle else 0
    shape[0], shape[axis] = shape[axis], shape[0]
    module = double(nn.Linear(size, 3, bias=bias))
    call = Call(module, (normal(*shape),), batch=batch, axis=axis)
    compare(rule_for(module), call)


@examples(15)
@given(
    st.integers(1, 3),
    st.lists(st.integers(1, 4), max_size=2),
    st.integers(1, 6),
    st.booleans(),
    st.integers(1, 3),
)
def test_random_embeddings(batch, middle, rows, padding, size):
    module = double(nn.Embedding(rows, size, padding_idx=rows - 1 if padding else None))
    call = Call(module, (ids(batch, *middle, below=rows),), batch=batch)
    compare(rule_for(module), call)


@examples(20)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 3]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_random_attention(
    batch, queries, keys, batch_first, bias, kdim, bias_kv, zero, weights, masked
):
    module = attention(
        batch_first=batch_first, bias=bias, kdim=kdim, add_bias_kv=bias_kv, add_zero_attn=zero
    )
    tensors = [normal(batch, queries, 6), normal(batch, keys, kdim or 6), normal(batch, keys, 6)]
    if not batch_first:
        tensors = [x.transpose(0, 1) for x in tensors]
    given = {"need_weights": weights}
    if masked:
        given["attn_mask"] = normal(queries, keys)
        given["key_padding_mask"] = torch.randn(batch, keys, dtype=torch.float64)
    axes = {"attn_mask": None, "key_padding_mask": 0}
    axis = 0 if batch_first else 1
    call = Call(module, tuple(tensors), given, batch=batch, axis=axis, axes=axes)
    compare(rule_for(module), call)


# ---- dtypes, empty batches, several uses


@pytest.mark.parametrize(
    "name",
    [
        "linear_positions",
        "conv_2d_groups",
        "conv_transposed_2d_groups",
        "embedding_padding",
        "norm_layer",
        "norm_rms",
        "norm_batch_2d",
        "attention_cross",
        "attention_zero_attn",
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name, dtype):
    call = CASES[name]()
    lower = lambda x: x.to(dtype) if x.is_floating_point() else x
    kwargs = {k: lower(v) for k, v in call.kwargs.items()}
    args = tuple(map(lower, call.args))
    call = dataclasses.replace(call, module=call.module.to(dtype), args=args, kwargs=kwargs)
    rule = rule_for(call.module)
    weights = output_weights(call)
    assert weights.dtype == dtype
    assert {g.dtype for g in found(rule, call, weights).values()} == {torch.float32}
    compare(rule, call, rtol=1e-4, atol=1e-4)


def test_inputs_in_float32_meet_gradients_in_bfloat16():
    """As under autocast, which casts inside the layer."""
    module = nn.Linear(5, 4)
    x = torch.randn(3, 6, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module(x)
    assert out.dtype == torch.bfloat16
    pair = rule_for(module).pairs(module, Use((x,), {}, torch.ones_like(out), 3))["weight"]
    assert gradient(pair).dtype == torch.float32
    torch.testing.assert_close(gradient(pair), x.sum(1)[:, None].expand(3, 4, 5))


@pytest.mark.parametrize(
    "name",
    [
        "linear_plain",
        "linear_positions",
        "conv_2d_groups",
        "conv_transposed_2d",
        "embedding_plain",
        "embedding_padding",
        "bag_mean",
        "norm_layer",
        "norm_group",
        "norm_batch_2d",
        "attention_cross",
    ],
)
@pytest.mark.parametrize("fallback", [False, True])
def test_a_batch_without_examples(name, fallback):
    call = CASES[name]()
    call = dataclasses.replace(call, args=tuple(x[:0] for x in call.args), batch=0)
    weights = output_weights(CASES[name]())[:0]
    rule = general(whole=True) if fallback else rule_for(call.module)
    gradients = found(rule, call, weights)
    shapes = {name: tuple(value.shape) for name, value in call.module.named_parameters()}
    assert {name: tuple(g.shape) for name, g in gradients.items()} == {
        name: (0, *shape) for name, shape in shapes.items()
    }


def test_a_weight_used_twice_is_the_sum_of_its_pairs():
    module = double(nn.Linear(4, 4))
    x, rule = normal(3, 2, 4), rule_for(module)
    middle = module(x).detach()
    weights = normal(3, 2, 4)
    first_grad = weights @ module.weight.detach()
    uses = [Use((x,), {}, first_grad, 3), Use((middle,), {}, weights, 3)]
    total = sum(gradient(rule.pairs(module, use)["weight"]) for use in uses)
    for b in range(3):
        loss = (module(module(x[b : b + 1])) * weights[b]).sum()
        (want,) = torch.autograd.grad(loss, [module.weight])
        torch.testing.assert_close(total[b], want, rtol=1e-9, atol=1e-11)


def test_bags_of_different_lengths():
    module = double(nn.EmbeddingBag(7, 4, mode="mean"))
    bags = [torch.tensor([1, 2, 2]), torch.tensor([], dtype=torch.long), torch.tensor([5])]
    offsets = torch.tensor([0, 3, 3])
    weights = normal(3, 4)
    use = Use((torch.cat(bags), offsets), {}, weights, 3)
    got = gradient(rule_for(module).pairs(module, use)["weight"])
    last = double(nn.EmbeddingBag(7, 4, mode="mean", include_last_offset=True))
    use = Use((torch.cat(bags),), {"offsets": torch.tensor([0, 3, 3, 4])}, weights, 3)
    torch.testing.assert_close(gradient(rule_for(last).pairs(last, use)["weight"]), got)
    for b, bag in enumerate(bags):
        loss = (module(bag, torch.tensor([0])) * weights[b]).sum()
        (want,) = torch.autograd.grad(loss, [module.weight])
        torch.testing.assert_close(got[b], want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(1, 6), (6,)])
def test_ids_for_all_examples_with_gradients_for_each(shape):
    """As positions have them, whose output is broadcast: of that, there is a gradient for each."""
    module = double(nn.Embedding(7, 4))
    positions, grad = ids(*shape), normal(3, 6, 4)
    got = gradient(rule_for(module).pairs(module, Use((positions,), {}, grad, 3))["weight"])
    for b in range(3):
        (want,) = torch.autograd.grad((module(positions) * grad[b]).sum(), [module.weight])
        torch.testing.assert_close(got[b], want, rtol=1e-9, atol=1e-11)


def test_self_attention_does_not_copy_its_inputs():
    call = CASES["attention_self"]()
    detached = tuple(x.detach() for x in call.args)  # as hooks give them: no longer one object
    call = dataclasses.replace(call, args=detached)
    pair = rule_for(call.module).pairs(call.module, use_of(call, output_weights(call)))
    assert pair["in_proj_weight"].right.array.data_ptr() == call.args[0].data_ptr()
