"""Which rule covers a module, and what is refused."""

# ruff: noqa: F401  (fixtures are imported)

from __future__ import annotations

import pytest
import torch
from torch import nn

from sawlog.errors import ArgumentError
from sawlog.torch._layers import Part, Use, rule_for

from .cases import double, normal
from .layer_modules import Doubled, seeded
from .oracle import Call, compare

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


# ---- which rule


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
