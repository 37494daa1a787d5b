"""Every layer rule, and the fallback, against autograd on single examples."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.torch._layers import Part, Rule, Use, general, register_layer, rule_for
from sawlog.torch._layers import _registry as registry
from tests.thorough import often, seeded_examples

from .cases import CASES, FALLBACK_CANNOT, attention, double, ids, normal
from .oracle import Call, compare, expected, found, output_weights, use_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def examples(number: int) -> settings:
    return seeded_examples(max(4, number // 2), number)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def registered() -> Iterator[None]:
    """Rules that a test registers are gone after it."""
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


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


# ---- which rule


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class Scaled(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, 2 * weight, bias)


class Plain(nn.Linear):
    pass


def test_a_subclass_with_its_own_forward_is_not_covered():
    assert rule_for(Plain(2, 2)) is rule_for(nn.Linear(2, 2)) is not None
    assert rule_for(Doubled(2, 2)) is None
    assert rule_for(Scaled(2, 2, 1)) is None
    assert rule_for(nn.ReLU()) is None
    patched = nn.Linear(2, 2)
    patched.forward = lambda input: input
    assert rule_for(patched) is None


def test_parametrized_weights_are_not_covered():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert rule_for(module) is None
    with pytest.warns(FutureWarning, match="weight_norm"):
        module = nn.utils.weight_norm(nn.Linear(3, 2))
    assert rule_for(module).parts(module) == ()


def test_lazy_layers_are_covered_once_they_have_a_shape():
    module = nn.LazyLinear(4)
    assert rule_for(module).parts(module) == ()
    module(torch.ones(2, 3))
    assert rule_for(module).parts(module) == (Part("weight", (4, 3), bias="bias"),)


def test_parts_say_what_the_parameters_are():
    parts = lambda module: rule_for(module).parts(module)
    assert parts(nn.Linear(3, 2)) == (Part("weight", (2, 3), bias="bias"),)
    assert parts(nn.Linear(3, 2, bias=False)) == (Part("weight", (2, 3)),)
    assert parts(nn.Embedding(9, 3)) == (Part("weight", (9, 3), inputs="left"),)
    assert parts(nn.Conv2d(4, 6, 3)) == (Part("weight", (6, 36), bias="bias"),)
    assert parts(nn.Conv2d(4, 6, 3, groups=2)) == (Part("weight", (2, 3, 18), bias="bias"),)
    transposed = (Part("weight", (2, 2, 27), inputs="left"), Part("bias", (6, 1)))
    assert parts(nn.ConvTranspose2d(4, 6, 3, groups=2)) == transposed
    assert parts(nn.LayerNorm((2, 3))) == (Part("weight", (6, 1)), Part("bias", (6, 1)))
    assert parts(nn.LayerNorm(3, elementwise_affine=False)) == ()
    assert parts(nn.InstanceNorm1d(3)) == ()
    assert parts(nn.MultiheadAttention(4, 2)) == (
        Part("in_proj_weight", (3, 4, 4), bias="in_proj_bias"),
        Part("out_proj.weight", (4, 4), bias="out_proj.bias"),
    )
    assert rule_for(nn.MultiheadAttention(4, 2)).whole


# ---- transformers and peft


def fake_conv1d() -> type[nn.Module]:
    """The same module as in transformers, whose name is all that is looked at."""

    class Conv1D(nn.Module):
        def __init__(self, nf, nx):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(nx, nf))
            self.bias = nn.Parameter(torch.zeros(nf))

        def forward(self, x):
            size = (*x.shape[:-1], self.weight.shape[1])
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)

    Conv1D.__module__, Conv1D.__qualname__ = "transformers.pytorch_utils", "Conv1D"
    return Conv1D


def real_conv1d() -> type[nn.Module]:
    return pytest.importorskip("transformers.pytorch_utils").Conv1D


@pytest.mark.parametrize("kind", [fake_conv1d, real_conv1d])
@pytest.mark.parametrize("by_keyword", [False, True])
def test_conv1d_of_transformers(kind, by_keyword):
    module = double(kind()(4, 5))
    x = normal(3, 6, 5)
    call = Call(module, () if by_keyword else (x,), {"x": x} if by_keyword else {})
    compare(rule_for(module), call)
    assert rule_for(module).parts(module) == (Part("weight", (5, 4), bias="bias", inputs="left"),)


def test_transformers_is_not_imported(forks):
    code = "import sys, sawlog.torch._layers; sys.exit('transformers' in sys.modules)"
    ended = forks.start(code)
    assert ended.wait(300) == 0, ended.output()


def test_layers_of_peft_are_covered_inside():
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"]))
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(names) == 2
    for name in names:
        owner = model.get_submodule(name.rpartition(".")[0])
        assert [part.name for part in rule_for(owner).parts(owner)] == ["weight"]


# ---- what is refused


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.Embedding(4, 2, max_norm=1.0), "max_norm its table depends"),
        (lambda: nn.Embedding(4, 2, scale_grad_by_freq=True), "depends on the others"),
        (lambda: nn.EmbeddingBag(4, 2, mode="max"), "not a sum"),
        (lambda: nn.EmbeddingBag(4, 2, max_norm=1.0), "max_norm its table depends"),
        (lambda: nn.BatchNorm1d(4), "train mode it mixes"),
        (lambda: nn.BatchNorm2d(4, track_running_stats=False).eval(), "in any mode"),
        (lambda: nn.MultiheadAttention(4, 2, dropout=0.1), "dropout of 0.1"),
    ],
)
def test_what_has_no_gradients_of_single_examples_is_refused(make, why):
    module = make()
    with pytest.raises(ArgumentError, match=f"{type(module).__name__} is not covered.*{why}.*Hint"):
        rule_for(module).parts(module)


def test_a_change_of_mode_is_noticed():
    norm = nn.BatchNorm1d(4).eval()
    rule_for(norm).parts(norm)
    norm.train()
    with pytest.raises(ArgumentError, match="train mode"):
        rule_for(norm).pairs(norm, Use((torch.ones(3, 4),), {}, torch.ones(3, 4), 3))
    module = nn.MultiheadAttention(4, 2, dropout=0.1).eval()
    rule_for(module).parts(module)
    module.train()
    x = torch.ones(3, 5, 4)
    with pytest.raises(ArgumentError, match="dropout"):
        rule_for(module).pairs(module, Use((x, x, x), {}, x, 5))


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Linear(4, 4), torch.ones(1, 4)),
        (nn.Linear(4, 4), torch.ones(7, 4)),
        (nn.Linear(4, 4), torch.ones(4)),
        (nn.Conv1d(4, 4, 1), torch.ones(4, 6)),
        (nn.LayerNorm(4), torch.ones(4)),
        (nn.GroupNorm(2, 4), torch.ones(2, 4)),
        (nn.Embedding(9, 4), torch.ones(1, 8, dtype=torch.long)),
        (nn.Embedding(9, 4), torch.ones(6, dtype=torch.long)),  # positions, broadcast afterwards
        (nn.InstanceNorm1d(4, affine=True), torch.ones(4, 6)),
        (nn.MultiheadAttention(4, 2), torch.ones(6, 4)),
    ],
)
def test_calls_without_an_axis_of_examples_are_refused(module, x):
    attends = isinstance(module, nn.MultiheadAttention)
    args = (x, x, x) if attends else (x,)
    out = module(*args)[0] if attends else module(x)
    with pytest.raises(ArgumentError, match="examples") as caught:
        rule_for(module).pairs(module, Use(args, {}, out.detach(), 3))
    assert "Hint" in str(caught.value)


# ---- rules of users


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x, *, power=1):
        return x * self.weight**power


class Product(nn.Module):
    """A matrix without factors of its own, and one that has them."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Parameter(torch.randn(4, 5))
        self.matrix = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        return x @ (self.plain + self.matrix).T


def test_a_user_writes_a_rule_as_a_function(registered):
    @register_layer(Scale)
    def rule(module, use):
        return {"weight": (use.args[0] * use.grad).sum(1)}

    assert callable(rule)
    module = double(Scale())
    compare(rule_for(module), Call(module, (normal(3, 6, 5),)))


@pytest.mark.parametrize("fallback", [False, True])
def test_half_precision_by_functions_and_the_fallback(registered, fallback):
    register_layer(Scale)(lambda module, use: {"weight": use.args[0] * use.grad})
    module = Scale().bfloat16()
    call = Call(module, (normal(3, 5).bfloat16(),))
    rule = general() if fallback else rule_for(module)
    assert found(rule, call, output_weights(call))["weight"].dtype == torch.float32
    compare(rule, call, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("form", ["pair", "tuple"])
def test_a_function_returns_gradients_or_factors(registered, form):
    @register_layer(Product)
    def rule(module, use):
        left, right = use.grad, use.args[0]
        whole = torch.einsum("bto,bti->boi", left, right)
        pair = Pair(Dense(left), Dense(right))
        return {"plain": whole, "matrix": pair if form == "pair" else (left, right)}

    module = double(Product())
    compare(rule_for(module), Call(module, (normal(3, 6, 5),)))
    assert {part.shape for part in rule_for(module).parts(module)} == {(4, 5)}


def test_factors_may_lack_positions(registered):
    @register_layer(Product)
    def rule(module, use):
        return dict.fromkeys(("plain", "matrix"), (use.grad, use.args[0]))

    module = double(Product())
    compare(rule_for(module), Call(module, (normal(3, 5),)))


def test_a_user_writes_a_rule_as_a_class(registered):
    @register_layer(Doubled)
    class DoubledRule(Rule):
        def parts(self, module):
            return (Part("weight", tuple(module.weight.shape), bias="bias"),)

        def pairs(self, module, use):
            return {"weight": Pair(Dense(2 * use.grad[:, None]), Dense(use.args[0][:, None]))}

    module = double(Doubled(5, 4))
    compare(rule_for(module), Call(module, (normal(3, 5),)))
    assert isinstance(rule_for(module), DoubledRule)


def test_a_function_may_speak_for_the_modules_inside(registered):
    @register_layer(nn.Sequential, whole=True)
    def rule(module, use):
        hidden = torch.relu(module[0](use.args[0]))
        back = (use.grad @ module[2].weight) * (hidden > 0)
        return {
            "0.weight": (back, use.args[0]),
            "0.bias": back,
            "2.weight": (use.grad, hidden),
            "2.bias": use.grad,
        }

    module = double(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)))
    assert rule_for(module).whole
    with torch.no_grad():
        compare_without_grad(module)


def compare_without_grad(module: nn.Module) -> None:
    call = Call(module, (normal(3, 5),))
    with torch.enable_grad():
        want = expected(call, output_weights(call))
    got = found(rule_for(module), call, output_weights(call))
    assert set(got) == set(want)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            lambda use: {"other": use.grad},
            r"should return a dict with \['weight'\], not \['other'\]",
        ),
        (lambda use: use.grad, r"should return a dict with \['weight'\], not Tensor"),
        (
            lambda use: {"weight": use.grad},
            r"gradients of shape \(3, 6, 5\) for 'weight'.*\(3, 5\)",
        ),
        (lambda use: {"weight": (use.grad, use.grad)}, r"factors .* \(5, 5\).* of shape \(5, 1\)"),
        (lambda use: {"weight": 1.0}, r"returned float for 'weight'"),
    ],
)
def test_what_a_function_returns_is_checked(registered, returned, message):
    register_layer(Scale)(lambda module, use: returned(use))
    module = Scale()
    with pytest.raises(ArgumentError, match=message):
        rule_for(module).pairs(module, Use((torch.ones(3, 6, 5),), {}, torch.ones(3, 6, 5), 3))


@pytest.mark.parametrize("kind", [5, nn.Linear(2, 2), dict])
def test_only_types_of_modules_have_rules(kind):
    with pytest.raises(ArgumentError, match="must be a subclass of torch"):
        register_layer(kind)


@pytest.mark.parametrize("rule", [5, None, dict, torch.ones(2)])
def test_only_functions_and_rules_are_rules(rule):
    with pytest.raises(ArgumentError, match="A layer rule must be"):
        register_layer(Scale)(rule)
    assert rule_for(Scale()) is None


# ---- the fallback


def test_the_fallback_takes_keywords_numbers_and_tensors_for_all():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.randn(5)), nn.Linear(5, 4)
            self.register_buffer("shift", torch.randn(5))

        def forward(self, given, *, power, table, nothing=None):
            assert nothing is None
            x = given["x"] ** power * self.scale + self.shift + table[:5]
            return self.inner(x), "more"

    module = double(Odd())
    x, table = normal(3, 6, 5), normal(7)
    grad = normal(3, 6, 4)
    use = Use(({"x": x},), {"power": 2, "table": table, "nothing": None}, grad, 3)
    own, names = general(), general(["inner.bias"])
    assert [part.name for part in own.parts(module)] == ["scale"]
    assert [part.name for part in names.parts(module)] == ["inner.bias"]
    got = {n: gradient(p) for r in (own, names) for n, p in r.pairs(module, use).items()}
    assert set(got) == {"scale", "inner.bias"}
    for b in range(3):
        out = module({"x": x[b : b + 1]}, power=2, table=table)[0]
        wants = torch.autograd.grad((out * grad[b]).sum(), [module.scale, module.inner.bias])
        for name, want in zip(("scale", "inner.bias"), wants, strict=True):
            torch.testing.assert_close(got[name][b, :, 0], want, rtol=1e-9, atol=1e-11)


def test_the_fallback_leaves_the_model_alone():
    module = double(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4))).eval()
    calls = []
    module.register_forward_hook(lambda *args: calls.append("hook"))
    module[1].register_forward_pre_hook(lambda *args: calls.append("hook"))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    tensors = [id(p) for p in module.parameters()]
    hooks = [dict(m._forward_hooks) for m in module.modules()]
    general(whole=True).pairs(module, Use((normal(3, 5),), {}, normal(3, 4), 3))
    assert calls == []
    assert [id(p) for p in module.parameters()] == tensors
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert [dict(m._forward_hooks) for m in module.modules()] == hooks
    module(normal(3, 5))
    assert calls == ["hook", "hook"]


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return x * self.weight / x.std(0, correction=0).clamp(min=0.1)


class Asking(nn.Module):
    """What it does depends on the values, so that `vmap` cannot follow."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return x * self.weight if x.sum() > 0 else x * self.weight.exp()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Call(nn.LSTM(4, 5, num_layers=2, batch_first=True), (normal(3, 6, 4),)),
        lambda: Call(nn.GRU(4, 5, bidirectional=True), (normal(6, 3, 4),), axis=1),
        lambda: Call(nn.LSTMCell(4, 5), (normal(3, 4),)),
        lambda: Call(nn.PReLU(4), (normal(3, 4, 2),)),
        lambda: Call(Doubled(4, 5), (normal(3, 4),)),
    ],
)
def test_the_fallback_covers_layers_without_rules(make):
    call = make()
    double(call.module)
    assert rule_for(call.module) is None
    compare(general(whole=True), call)


def test_the_fallback_goes_one_by_one_where_values_decide():
    module, signs = double(Asking()), torch.tensor([[1.0], [1.0], [-1.0]]).double()
    x, grad = signs * normal(3, 5).abs(), normal(3, 5)
    with pytest.raises(ArgumentError, match="do not add up"):  # the batch has one answer for all
        general().pairs(module, Use((x,), {}, grad, 3))
    compare(general(), Call(module, (x.abs(),)))


class Tabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x, table):
        return x * self.weight * table.sum(0)


@pytest.mark.parametrize(
    ("module", "args", "message"),
    [
        (Mixing(), (3, 5), "mixes examples"),
        (nn.Sequential(nn.Linear(5, 5), nn.Dropout()), (3, 5), "draws random numbers"),
        (
            nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)),
            (3, 5),
            "single example .Expected more than 1 value",
        ),
        (nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)), (3, 2, 4), "mixes examples"),
        (nn.Linear(5, 5), (1, 5), r"a tensor of shape \(1, 5\) has no axis of 3 examples"),
    ],
)
def test_the_fallback_says_what_it_cannot_do(module, args, message):
    x = torch.randn(*args)
    use = Use((x,), {}, torch.randn(*args), 3)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ArgumentError, match=message):
        general(whole=True).pairs(module, use)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_the_fallback_notices_a_tensor_that_it_split_by_chance():
    module = Tabled()
    use = Use((torch.randn(3, 5), torch.randn(3, 5)), {}, torch.randn(3, 5), 3)
    with pytest.raises(ArgumentError, match="happens to be as long as there are"):
        general().pairs(module, use)
    use = Use((torch.randn(3, 5), torch.randn(4, 5)), {}, torch.randn(3, 5), 3)
    assert set(general().pairs(module, use)) == {"weight"}


def test_matrices_of_the_fallback_are_projected_on_both_sides():
    module = double(nn.Bilinear(2, 3, 4))
    call = Call(module, (normal(3, 2), normal(3, 3)))
    pair = general().pairs(module, use_of(call, output_weights(call)))["weight"]
    assert isinstance(pair.left, OneHot)
    left, right = normal(4, 2), normal(6, 3)
    want = left.T @ gradient(pair) @ right
    torch.testing.assert_close(gradient(pair.projected(left, right)), want)


class LikeRMSNorm(nn.Module):
    """RMSNorm as models define it, in the ways that exist, and things that only look like it."""

    def __init__(self, kind, size=5, eps=1e-3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.kind, self.some, self.eps = kind, 0.25, eps

    def forward(self, values):
        x = values.float() if self.kind == "float32" else values
        if self.kind == "mean":
            x = x - x.mean(-1, keepdim=True)
        axis = 0 if self.kind == "axis" else -1
        own = 2 * self.eps if self.kind == "other eps" else self.eps
        x = x * torch.rsqrt(x.pow(2).mean(axis, keepdim=True) + own)
        x = x.to(values.dtype)
        if self.kind == "squared":
            return x * self.weight**2
        return x * (1 + self.weight) if self.kind == "one more" else self.weight * x


@pytest.mark.parametrize(
    ("kind", "is_one"),
    {
        "plain": True, "float32": True, "one more": True,
        "mean": False, "axis": False, "other eps": False, "squared": False,
    }.items(),
)  # fmt: skip
def test_rms_norms_are_recognized_by_what_they_compute(kind, is_one):
    torch.manual_seed(0)
    module = LikeRMSNorm(kind)
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    state, weight = torch.get_rng_state(), module.weight
    rule = rule_for(module)
    assert (rule is not None) == is_one
    assert not calls
    assert module.weight is weight
    assert torch.equal(torch.get_rng_state(), state)
    if rule is not None:
        call = Call(module.double(), (torch.randn(3, 4, 5, dtype=torch.float64) * 0.05,))
        weights = output_weights(call)
        own, true = found(rule, call, weights)["weight"], expected(call, weights)["weight"]
        torch.testing.assert_close(own, true, rtol=1e-5, atol=1e-5)
