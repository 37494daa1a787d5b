"""Rules of users, and the fallback for modules without one."""

# ruff: noqa: F401  (fixtures are imported)

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.torch._layers import Part, Rule, Use, _attention, general, register_layer, rule_for
from sawlog.torch._layers import _registry as registry

from .cases import double, normal
from .layer_modules import Doubled, seeded
from .oracle import Call, compare, expected, found, output_weights, use_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


@pytest.fixture
def registered() -> Iterator[None]:
    """Rules that a test registers are gone after it."""
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


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


class Replaced(LikeRMSNorm):
    """A module whose class creates instances its own way, as that of ``fully_shard`` does."""

    def __new__(cls, *args, **options):
        self = object.__new__(LikeRMSNorm)
        self.__init__(*args, **options)
        return self


def test_an_rms_norm_whose_class_was_replaced():
    module = LikeRMSNorm("plain")
    module.__class__ = Replaced
    assert rule_for(module) is not None


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


def test_the_fallback_where_outputs_have_no_axis_of_sequences():
    """With ``batch_axis=1`` a head after pooling has its examples first."""
    module, x, grad = double(nn.Linear(5, 4)), normal(3, 5), normal(3, 4)
    for axis in (0, 1):
        found = general().pairs(module, Use((x,), {}, grad, 3, axis=axis))
        weights = gradient(found["weight"])
        torch.testing.assert_close(weights, grad[:, :, None] * x[:, None, :])


def test_views_of_the_same_memory_are_other_inputs():
    x = normal(3, 3)
    assert _attention._place(x) == _attention._place(x.view(3, 3))
    others = [x.T, x[:2], x.flatten(), x.view(torch.int64), x[1:], x.clone()]
    assert len({_attention._place(each) for each in (x, *others)}) == 1 + len(others)
