"""Programs that use parameters, examples and losses in all sorts of ways.

Each is a model, a batch, and a step, which is called with the model and the batch, runs a backward
pass, and returns what must not change when it is watched. ``RIGHT`` are logged as a batch of one
has it; ``REFUSED`` are errors, with what they say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Situation:
    """A program; ``examples`` are along ``axis``, as many as ``ids``."""

    model: nn.Module
    batch: tuple[Tensor, ...]
    step: Callable[..., Tensor]
    ids: int | None = None
    axis: int = 0
    watch: dict[str, Any] = dataclasses.field(default_factory=lambda: {"uncovered": "func"})
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    inside: dict[str, Any] = dataclasses.field(default_factory=dict)
    factor: float = 1.0
    unscaled: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        self.model = self.model.double()
        self.ids = self.batch[0].shape[self.axis] if self.ids is None else self.ids

    def part(self, i: int) -> tuple[Tensor, ...]:
        return tuple(t.narrow(self.axis if t.dim() > self.axis else 0, i, 1) for t in self.batch)


RIGHT: dict[str, Callable[[], Situation]] = {}
REFUSED: dict[str, tuple[Callable[[], Situation], str]] = {}


def right(make: Callable[[], Situation]) -> Callable[[], Situation]:
    RIGHT[make.__name__] = make
    return make


def refused(said: str) -> Any:
    def add(make: Callable[[], Situation]) -> Callable[[], Situation]:
        REFUSED[make.__name__] = (make, said)
        return make

    return add


def numbers(n: int = 5, size: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(n, size).double(), torch.randint(0, classes, (n,))


def sequences(n: int = 4, length: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, length, 4).double(), torch.randint(0, 3, (n,))


def tokens(n: int = 4, length: int = 6, words: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randint(0, words, (n, length)), torch.randint(0, words, (n, length))


def padded() -> tuple[Tensor, Tensor]:
    x, y = tokens()
    y[0, 2:], y[2, 1:] = -100, -100
    return x, y


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


def predict(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    return loss


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Module(nn.Module):
    """A module whose ``forward`` is a function of itself and its inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *args: Any) -> Any:
        return self._forward(self, *args)


def language(words: int = 7) -> nn.Module:
    return Module(
        lambda m, x: m.out(torch.tanh(m.embed(x)).cumsum(1)),
        embed=nn.Embedding(words, 4),
        out=nn.Linear(4, words),
    )


# -- how parameters are used ----------------------------------------------------------------------


@right
def a_table_that_is_a_head_as_well() -> Situation:
    model = Module(
        lambda m, x: F.linear(torch.tanh(m.mix(m.embed(x))).cumsum(1), m.embed.weight),
        embed=nn.Embedding(7, 4),
        mix=nn.Linear(4, 4),
    )
    return Situation(model, tokens(), predict)


class ScaledEmbedding(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3.0


def tied() -> nn.Module:
    model = Module(
        lambda m, x: m.head(torch.tanh(m.mix(m.embed(x))).cumsum(1)),
        embed=ScaledEmbedding(7, 4),
        mix=nn.Linear(4, 4),
        head=nn.Linear(4, 7, bias=False),
    )
    model.head.weight = model.embed.weight
    return model


@right
def a_tied_weight_with_a_user_that_has_no_rule() -> Situation:
    return Situation(tied(), tokens(), predict, watch={"uncovered": "skip"})


@right
def a_tied_weight_of_which_one_type_is_watched() -> Situation:
    return Situation(tied(), tokens(), predict, watch={"types": [nn.Linear]})


@right
def a_convolution_through_its_weight() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = F.conv1d(x.mT, m.conv.weight, m.conv.bias, groups=4, padding=2)
        return m.out(F.silu(h[..., : x.shape[1]]).mean(2))

    model = Module(forward, conv=nn.Conv1d(4, 4, 3, groups=4), out=nn.Linear(4, 3))
    return Situation(model, sequences(), classify)


@right
def lists_and_dicts_of_parameters() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        for each in m.several:
            x = torch.tanh(x @ each)
        return m.out(x * m.named["scale"])

    several = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(2)])
    named = nn.ParameterDict({"scale": nn.Parameter(torch.randn(4))})
    model = Module(forward, several=several, named=named, out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@right
def the_last_state_of_a_gru() -> Situation:
    model = Module(
        lambda m, x: m.out(m.gru(x)[1][-1]),
        gru=nn.GRU(4, 3, batch_first=True, num_layers=2, bidirectional=True),
        out=nn.Linear(3, 3),
    )
    return Situation(model, sequences(length=3), classify)


@right
def a_cell_with_two_states() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = m.cell(x[:, t], state)
        return m.out(torch.cat(state, 1))

    model = Module(forward, cell=nn.LSTMCell(4, 3), out=nn.Linear(6, 3))
    return Situation(model, sequences(length=3), classify)


@right
def attention_weights_in_the_loss() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        h, weights = model.attend(x, x, x)
        loss = F.cross_entropy(model.out(h.mean(1)), y) + (weights**2).sum((1, 2)).mean()
        loss.backward()
        return loss

    attend = nn.MultiheadAttention(4, 2, batch_first=True)
    return Situation(Module(step, attend=attend, out=nn.Linear(4, 3)), sequences(), step)


@right
def class_tokens_and_prompts() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        parts = [m.token.expand(len(x), -1, -1), m.prompt[None].repeat(len(x), 1, 1), x]
        return m.out(m.layer(torch.cat(parts, 1) + m.places)[:, 0])

    model = Module(
        forward,
        token=nn.Parameter(torch.randn(1, 1, 4)),
        prompt=nn.Parameter(torch.randn(2, 4)),
        places=nn.Parameter(torch.randn(1, 9, 4)),
        layer=nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        out=nn.Linear(4, 3),
    )
    return Situation(model, sequences(), classify)


@right
def layers_of_parameters_alone() -> Situation:
    """As the queries of a Perceiver: they are the same for all examples, whatever made them."""

    def forward(m: Any, x: Tensor) -> Tensor:
        queries = m.query(m.norm(m.latents.expand(len(x), -1, -1)))
        return m.out((queries @ x.mT).softmax(-1).flatten(1))

    model = Module(
        forward,
        latents=nn.Parameter(torch.randn(2, 4)),
        norm=nn.LayerNorm(4),
        query=nn.Linear(4, 4),
        out=nn.Linear(12, 3),
    )
    return Situation(model, sequences(), classify)


@right
def layers_of_a_buffer_of_as_many_places_as_examples() -> Situation:
    """As the continuous position bias of Swin v2, scaled in place as DeBERTa does."""

    def forward(m: Any, x: Tensor) -> Tensor:
        places = m.made(m.places)
        places[:2] /= 2.0
        return m.out((torch.tanh(x) + places).mean(1))

    model = Module(forward, made=nn.Linear(2, 4), out=nn.Linear(4, 3))
    model.register_buffer("places", torch.randn(6, 2))
    return Situation(model, sequences(3), classify)


@right
def gradients_that_are_mostly_rounding() -> Situation:
    """The sum of some weights is 1, so that their own gradients cancel out."""

    def forward(m: Any, x: Tensor) -> Tensor:
        scores = m.scores(x).exp()
        shares = (scores / scores.sum(-1, keepdim=True)).sum(-1, keepdim=True)
        return m.out(torch.tanh(x) * shares)

    model = Module(forward, scores=nn.Linear(4, 3), out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@right
def a_weight_that_is_standardised() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        flat = F.batch_norm(m.first.weight[None], None, None, training=True, eps=1e-3)
        return m.out(torch.tanh(F.linear(x, flat[0], m.first.bias)))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(3), classify)


@right
def an_output_for_all_examples_is_summed() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        places = m.places(torch.arange(x.shape[1])[None])
        return m.out((torch.tanh(x) * places.sum(0)).mean(1))

    model = Module(forward, places=nn.Embedding(6, 4), out=nn.Linear(4, 3))
    return Situation(model, sequences(), classify)


@right
def a_relative_bias() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        apart = (places[:, None] - places[None]).clamp(-2, 2) + 2
        scores = x @ x.mT + m.bias(apart)[..., 0]
        return m.out((scores.softmax(-1) @ x + m.bias(apart).mean((0, 1))).mean(1))

    model = Module(forward, bias=nn.Embedding(5, 1), out=nn.Linear(4, 3))
    return Situation(model, sequences(3, 6), classify)


@right
def experts_that_tokens_are_routed_to() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = torch.tanh(m.embed(x).cumsum(1))
        flat = h.flatten(0, 1)
        weights, chosen = m.router(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for e in range(3):
            token, place = (chosen == e).nonzero(as_tuple=True)
            made = m.experts[e](flat[token]) + flat[token] @ m.fused[e]
            out = out.index_add(0, token, made * weights[token, place, None])
        return m.out(out.view(h.shape))

    model = Module(
        forward,
        embed=nn.Embedding(7, 4),
        router=nn.Linear(4, 3),
        experts=nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]),
        fused=nn.Parameter(torch.randn(3, 4, 4)),
        out=nn.Linear(4, 7),
    )
    return Situation(model, tokens(), predict)


@right
def experts_that_are_looked_up() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        flat = m.first(x).flatten(0, 1)
        weight, chosen = (flat @ m.router).softmax(-1).max(-1)
        made = torch.bmm(m.fused[chosen], flat[..., None])[..., 0] + m.shift[chosen]
        return m.out((made * weight[:, None]).view(x.shape).mean(1))

    model = Module(
        forward,
        first=nn.Linear(4, 4),
        router=nn.Parameter(torch.randn(4, 3)),
        fused=nn.Parameter(torch.randn(3, 4, 4)),
        shift=nn.Parameter(torch.randn(3, 4)),
        out=nn.Linear(4, 3),
    )
    return Situation(model, sequences(), classify)


@right
def frozen_experts_with_an_update_of_low_rank() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        fused = torch.baddbmm(m.fused, m.up, m.down)
        return m.out(torch.tanh(torch.einsum("bld,hde->bhle", x, fused)).mean((1, 2)))

    model = Module(
        forward,
        fused=nn.Parameter(torch.randn(4, 4, 4), requires_grad=False),
        up=nn.Parameter(torch.randn(4, 4, 2)),
        down=nn.Parameter(torch.randn(4, 2, 4)),
        out=nn.Linear(4, 3),
    )
    return Situation(model, sequences(), classify)


@right
def views_of_weights() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        for weight in (m.weight[1], m.weight.unbind(0)[0].T, m.weight.flatten(0, 1)[2::3]):
            x = torch.tanh(F.linear(x, weight))
        x = x @ m.weight.transpose(0, 1).reshape(4, 12)[:, 3:7] + m.shift.chunk(2)[1]
        return m.out(torch.addmm(m.shift[:4], x, m.weight[2], beta=0.5, alpha=2.0))

    model = Module(
        forward,
        weight=nn.Parameter(torch.randn(3, 4, 4)),
        shift=nn.Parameter(torch.randn(8)),
        out=nn.Linear(4, 3),
    )
    return Situation(model, numbers(), classify)


@right
def layers_as_functions() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = F.conv1d(F.layer_norm(x, (4,), m.scale, m.shift).mT, m.weight, m.shift, groups=2)
        return m.out(torch.tanh(torch.cat([h.mT, m.token.expand(len(x), -1, -1)], 1)).mean(1))

    model = Module(
        forward,
        scale=nn.Parameter(torch.randn(4)),
        shift=nn.Parameter(torch.randn(4)),
        weight=nn.Parameter(torch.randn(4, 2, 3)),
        token=nn.Parameter(torch.randn(1, 2, 4)),
        out=nn.Linear(4, 3),
    )
    return Situation(model, sequences(), classify)


@right
def weights_made_of_others() -> Situation:
    norm = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
    return Situation(nn.Sequential(norm, nn.Tanh(), nn.Linear(6, 3)), numbers(), classify)


@right
def a_product_with_three_axes() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.einsum("bd,hde->bhe", x, m.weight).flatten(1).tanh())

    model = Module(forward, weight=nn.Parameter(torch.randn(2, 4, 5)), out=nn.Linear(10, 3))
    return Situation(model, numbers(), classify)


@right
def hooks_that_change_outputs_and_gradients() -> Situation:
    model = two_layers().double()
    model[0].register_forward_hook(lambda module, args, output: 2 * output)

    def triple(module: Any, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda grad: 3 * grad)

    model[2].register_forward_hook(triple)
    return Situation(model, numbers(), classify)


@right
def a_parameter_inside_of_a_checkpoint() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        inside = lambda h: torch.tanh(m.inner(h)) * m.scale
        return m.out(checkpoint(inside, torch.tanh(m.first(x)), use_reentrant=False))

    model = Module(
        forward,
        first=nn.Linear(4, 6),
        inner=nn.Linear(6, 6),
        scale=nn.Parameter(torch.randn(6)),
        out=nn.Linear(6, 3),
    )
    return Situation(model, numbers(), classify)


# -- where the examples are -----------------------------------------------------------------------


@right
def pairs_in_one_batch() -> Situation:
    """As in DPO: the chosen, then the rejected."""

    def step(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
        ids = torch.cat([chosen, rejected])
        found = F.log_softmax(model(ids), -1)[:, :-1].gather(2, ids[:, 1:, None])
        one, two = found[..., 0].sum(1).chunk(2)
        loss = -F.logsigmoid(one - two).mean()
        loss.backward()
        return loss

    return Situation(language(), tokens(), step)


@right
def two_views() -> Situation:
    def step(model: nn.Module, x: Tensor, other: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(torch.cat([x, other])), torch.cat([y, y]))
        loss.backward()
        return loss

    batch = (numbers()[0], *numbers())
    return Situation(two_layers(), batch, step, inside={"views": 2})


@right
def examples_one_by_one() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
        loss = torch.stack(each).mean()
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


def sequence_first() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    return nn.Sequential(nn.Embedding(7, 4), layer, nn.Linear(4, 7))


@right
def sequences_come_first_and_are_padded() -> Situation:
    x, y = tokens(8, 4)
    y[3:, 0], y[1:, 2] = -100, -100
    return Situation(sequence_first(), (x, y), predict, axis=1)


@right
def sequences_come_first_inside_of_the_model() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.tanh(m.embed(x.T) @ m.weight).cumsum(0).transpose(0, 1))

    weight = nn.Parameter(torch.randn(4, 4))
    model = Module(forward, embed=nn.Embedding(7, 4), weight=weight, out=nn.Linear(4, 7))
    return Situation(model, tokens(), predict)


@refused("mixes examples|8 targets|unknown which")
def sequences_come_first_and_nobody_said_so() -> Situation:
    return Situation(sequence_first(), tokens(4, 4), predict, ids=4)


@refused("6 targets for 3 examples")
def fewer_ids_than_examples() -> Situation:
    return Situation(two_layers(), numbers(6), classify, ids=3)


@refused("unknown which")
def fewer_ids_than_examples_in_a_sum() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(6), step, ids=3)


@refused("10 targets for 5 examples")
def two_views_and_nobody_said_so() -> Situation:
    return dataclasses.replace(two_views(), inside={})


# -- examples that interact -----------------------------------------------------------------------


@refused("mixes examples")
def a_contrastive_loss() -> Situation:
    def step(model: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        scores = model(x) @ model(other).T
        loss = F.cross_entropy(scores, torch.arange(len(x)))
        loss.backward()
        return loss

    return Situation(two_layers(), (numbers()[0], numbers()[0]), step)


@refused("mixes examples")
def centred_by_hand() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        return m.out(torch.tanh(h - h.mean(0)))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)


@refused("mixes examples")
def parameters_and_inputs_centred_by_hand() -> Situation:
    """All of it could be the same for all examples, but for the loss."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.token.expand(len(x), -1) + x
        return m.out(torch.tanh(h - h.mean(0)))

    model = Module(forward, token=nn.Parameter(torch.randn(4)), out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@refused("mixes examples")
def parameters_and_inputs_centred_beside_others() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.token.expand(len(x), -1) + x
        return m.out(torch.tanh((h - h.mean(0)) ** 2 + m.first(x)))

    token = nn.Parameter(torch.randn(4))
    model = Module(forward, token=token, first=nn.Linear(4, 4), out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@right
def a_token_where_a_mask_says_so() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        tokens = torch.where(x > 0, m.token.expand(*x.shape), m.other.expand(*x.shape))
        return m.out(torch.tanh(tokens * 2 + x))

    token, other = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
    model = Module(forward, token=token, other=other, out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@refused("scale_grad_by_freq")
def a_table_whose_gradients_depend_on_the_batch() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return F.linear(F.embedding(x, m.table, scale_grad_by_freq=True), m.table)

    model = Module(forward, table=nn.Parameter(torch.randn(7, 4)))
    return Situation(model, tokens(), predict)


@refused("`.eval\\(\\)`")
def a_batch_norm_that_is_not_watched() -> Situation:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    return Situation(model, numbers(), classify, watch={"names": ["2"]})


@refused("`.eval\\(\\)`")
def a_batch_norm_that_is_a_function() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(F.batch_norm(m.first(x), None, None, training=True))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)


@refused("mixes examples")
def a_hook_that_clips() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad / grad.norm())
        return m.out(torch.tanh(h))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)


# -- losses ---------------------------------------------------------------------------------------


def masked(few: bool) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
        loss = (each.view(y.shape) * mask).sum() / mask.sum().clamp(min=1)
        loss.backward()
        return loss

    mask = torch.zeros(6, 5).double()
    if few:
        mask[0, 1], mask[3, 2:4] = 1, 1
    else:
        mask[:, 0], mask[1:4, 2] = 1, 1
    return Situation(language(), (*tokens(6, 5), mask), step)


@right
def a_masked_mean() -> Situation:
    return masked(few=False)


@right
def a_masked_mean_of_fewer_targets_than_examples() -> Situation:
    return masked(few=True)


@right
def targets_that_were_picked() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x)[mask], y[mask])
        loss.backward()
        return loss

    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]).bool()
    mask[3, 2] = True
    return Situation(language(), (*tokens(4, 3), mask), step)


@right
def a_mean_and_then_a_sum() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        one = F.cross_entropy(out, y)
        one.backward(retain_graph=True)
        two = (out**2).sum()
        two.backward()
        return one + two

    return Situation(two_layers(), numbers(), step)


@right
def a_gradient_of_the_inputs_on_the_way() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), x)
        return classify(model, (x + 0.1 * grad.sign()).detach(), y)

    return Situation(two_layers(), numbers(), step)


@right
def a_gradient_penalty() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + (grad.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


@refused("set to zero between two backward passes")
def gradients_dropped_in_between() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        classify(model, x, y)
        model.zero_grad()
        return classify(model, 2 * x, y)

    return Situation(two_layers(), numbers(), step)


@right
def a_scaler_that_was_not_given() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    return Situation(two_layers(), numbers(), step, factor=1024.0)


@right
def accumulation_with_padding() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 4
        loss.backward()
        return loss

    return Situation(language(), padded(), step)


@right
def accumulation_with_weights_of_classes() -> Situation:
    weight = torch.tensor([0.2, 0.7, 1.3]).double()

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y, weight=weight) / 4
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


@right
def soft_targets() -> Situation:
    return Situation(two_layers(), (numbers()[0], torch.rand(5, 3).double()), classify)


@right
def label_smoothing_with_padding() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), label_smoothing=0.1)
        loss.backward()
        return loss

    return Situation(language(), padded(), step)


@right
def terms_that_are_joined_in_different_ways() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        logits, kind = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss = loss + 0.5 * F.cross_entropy(kind, z) + 0.1 * logits.logsumexp(-1).pow(2).mean()
        loss.backward()
        return loss

    def forward(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return m.language(x), m.kind(torch.tanh(m.language.embed(x)).mean(1))

    model = Module(forward, language=language(), kind=nn.Linear(4, 2))
    return Situation(model, (*padded(), torch.tensor([0, 1, 1, 0])), step)


@right
def losses_of_single_examples() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(model(x), y, reduction="none")
        each.backward(torch.ones_like(each))
        return each.sum() * 0

    return Situation(two_layers(), numbers(), step)


def started(start: Callable[..., Any], **more: Any) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        each = F.cross_entropy(model(x), y, reduction="none")
        start(each, w)
        return each.sum() * 0

    return Situation(two_layers(), (*numbers(), torch.rand(5).double()), step, **more)


@right
def several_losses_with_ones() -> Situation:
    def start(each: Tensor, w: Tensor) -> None:
        torch.autograd.backward([each, each.sum()], [torch.ones_like(each), None])

    return started(start)


@right
def weights_of_examples_in_a_sum() -> Situation:
    return started(lambda each, w: (each * w).sum().backward())


@right
def a_mean_by_a_gradient_that_was_declared() -> Situation:
    def start(each: Tensor, w: Tensor) -> None:
        each.backward(torch.full_like(each, 1 / len(each)))

    return started(start, options={"reduction": "mean"})


@refused("call backward on a scalar")
def a_mean_by_a_gradient() -> Situation:
    return started(lambda each, w: each.backward(torch.full_like(each, 1 / len(each))))


@refused("call backward on a scalar")
def weights_by_a_gradient() -> Situation:
    return started(lambda each, w: each.backward(w))


@refused("call backward on a scalar")
def a_mean_by_a_gradient_of_a_number() -> Situation:
    return started(lambda each, w: each.sum().backward(torch.tensor(0.2).double()))


@refused("call backward on a scalar")
def several_losses_with_gradients() -> Situation:
    def start(each: Tensor, w: Tensor) -> None:
        torch.autograd.backward([each.sum(), each], [None, w])

    return started(start)


def with_penalty(rows: int) -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y) + 0.1 * model.weight.pow(2).sum()
        loss.backward()
        return loss

    return Situation(nn.Linear(4, rows), numbers(5, 4, rows), step)


@refused("depends on parameters alone")
def a_penalty_on_weights() -> Situation:
    return with_penalty(3)


@refused("depends on parameters alone")
def a_penalty_on_as_many_rows_as_examples() -> Situation:
    return with_penalty(5)


def joined(join: Callable[[Tensor], Tensor], outputs: int = 3) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = join((model(x) - 1) ** 2)
        loss.backward()
        return loss

    return Situation(nn.Linear(4, outputs), numbers(), step)


@refused("SqrtBackward0")
def a_root_of_a_mean() -> Situation:
    return joined(lambda each: each.mean().sqrt())


@refused("1 divided by the number of examples, or a constant")
def a_sum_times_the_reciprocal() -> Situation:
    return joined(lambda each: each.sum() * (1 / len(each)))


@refused("the number of examples or a constant")
def a_mean_times_the_examples() -> Situation:
    return joined(lambda each: each.mean() * len(each))


@refused("either axis")
def a_mean_over_either_axis() -> Situation:
    return joined(lambda each: each.mean(0).mean(), outputs=5)


@refused("either axis")
def a_mean_over_either_axis_by_a_negative_number() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x) ** 2).mean(-3).mean()
        loss.backward()
        return loss

    return Situation(language(), tokens(5, 5), step)


@refused("mixes examples")
def a_mean_that_is_weighted_afterwards() -> Situation:
    return joined(lambda each: (each.mean() * torch.rand(5).double()).mean())


def weighed(join: Callable[[Tensor, Tensor], Tensor], **more: Any) -> Situation:
    """Losses ``[examples, tokens]`` joined by weights of the same shape, uneven between them."""

    def step(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        loss = join(each, w)
        loss.backward()
        return loss

    w = torch.rand(6, 5).double()
    w[0, 2:], w[4, 1] = 0, 0
    return Situation(language(), (*tokens(6, 5), w), step, **more)


def _advantages(each: Tensor, w: Tensor) -> Tensor:
    return -torch.min(each * (w - w.mean()), each.clamp(0.8, 1.2) * (w - w.mean())).mean()


for _name, _join in {
    "a_mean_by_that_of_the_weights": lambda each, w: (each * w).mean() / w.mean(),
    "a_sum_by_that_of_the_weights": lambda each, w: (each * w).sum() / w.sum(),
    "weights_normalised_for_each_example": lambda each, w: (
        (each * (w / w.sum(1, keepdim=True))).sum(1).mean()
    ),
    "weights_of_either_sign": lambda each, w: (
        (each * (w > 0.5).double().mul(2).sub(1)).sum(-1).mean(-1)
    ),
    "a_dot_product_with_weights": lambda each, w: torch.dot(each[:, 0], w[:, 0]),
    "a_constant_before_a_sum": lambda each, w: (each / 7).sum(),
    "negative_axes": lambda each, w: each.mean(-1).mean(-1),
}.items():
    RIGHT[_name] = lambda join=_join: weighed(join)  # type: ignore[misc]

for _name, (_join, _said) in {
    "weights_that_sum_up_to_one": (lambda each, w: (each * (w / w.sum())).sum(), "sum up to 1"),
    "weights_of_the_same_size": (
        lambda each, w: torch.dot(each.mean(1), torch.full((len(w),), 1 / len(w)).double()),
        "sum up to 1",
    ),
    "weights_with_the_mean_one": (lambda each, w: (each * (w / w.mean())).mean(), "the mean 1"),
    "advantages_with_the_mean_zero": (_advantages, "the mean 0"),
    "a_division_before_the_sum": (lambda each, w: (each / len(w)).sum(), "before it is joined"),
    "a_product_before_the_sum": (lambda each, w: (each * (1 / w.numel())).sum(), "before it is"),
    "weights_divided_before_the_sum": (lambda each, w: (each * w / w.sum()).sum(), "before it is"),
    "weights_divided_before_the_mean": (
        lambda each, w: (each * w / w.mean()).mean(),
        "before it is joined",
    ),
    "a_mean_by_a_share": (lambda each, w: (each * w).mean(1).mean() / 0.7, "the mean of a mask"),
    "a_mean_times_the_reciprocal": (
        lambda each, w: (each * w).mean() * (1 / w.mean()),
        "1 divided by the mean of a mask",
    ),
}.items():
    REFUSED[_name] = (lambda join=_join: weighed(join), _said)  # type: ignore[misc]


@right
def weights_that_are_taken_as_they_are() -> Situation:
    """Weights of constants, so that those of a batch of one are the same."""
    w = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15]).double()

    def step(model: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        loss = (F.cross_entropy(model(x), y, reduction="none") * w[at]).sum()
        loss.backward()
        return loss

    batch = (*numbers(), torch.arange(5))
    return Situation(two_layers(), batch, step, options={"reduction": "sum"})


# -- scalers --------------------------------------------------------------------------------------


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0)


def scaled(start: Callable[[Any, Tensor, Tensor], Any], **more: Any) -> Situation:
    """Two losses of one batch; the second has a scale for each example."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.tensor([0.2, 0.7, 1.3]).double()
        one = (model(x) ** 2).mean()
        two = F.cross_entropy(model(2 * x), y, weight=weight)
        start(scaler(), one, two)
        return one + two

    return Situation(two_layers(), numbers(), step, **more)


def _two_passes(s: Any, one: Tensor, two: Tensor) -> None:
    one, two = s.scale([one, two])
    one.backward()
    two.backward()


def _map(s: Any, one: Tensor, two: Tensor) -> None:
    torch.autograd.backward(list(s.scale(each for each in (one, two))))


for _name, _start in {
    "a_scaled_sum_of_terms": lambda s, one, two: s.scale(one + two).backward(),
    "two_scaled_passes_of_one_structure": _two_passes,
    "a_generator_of_scaled_losses": _map,
    "a_scaled_loss_that_is_divided": lambda s, one, two: (s.scale(two) / 4).backward(),
}.items():
    RIGHT[_name] = lambda start=_start: scaled(start, factor=1024.0)  # type: ignore[misc]


def _other_is_walked(s: Any, one: Tensor, two: Tensor) -> None:
    s.scale(one)
    two.backward()


@right
def a_scaler_for_a_loss_that_is_not_walked_back_from() -> Situation:
    return scaled(_other_is_walked)


@right
def one_pass_scaled_and_one_not() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        one = F.cross_entropy(model(x), y)
        scaler().scale(one * 2**-10).backward()
        two = (model(x) ** 2).mean()
        two.backward()
        return one + two

    situation = Situation(two_layers(), numbers(), step)
    situation.unscaled = lambda model, x, y: (
        F.cross_entropy(model(x), y) * 2**-10 + (model(x) ** 2).mean()
    )
    return situation


@right
def two_passes_of_one_structure() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        one, two = F.cross_entropy(model(x), y), F.cross_entropy(model(2 * x), y)
        one.backward()
        two.backward()
        return one + two

    return Situation(two_layers(), numbers(), step)


@right
def two_losses_of_different_layers() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        one, two = F.cross_entropy(model.first(x), y), (model.other(x) ** 2).mean()
        torch.autograd.backward([one, two])
        return one + two

    model = Module(lambda m, x: x, first=nn.Linear(4, 3), other=nn.Linear(4, 2))
    return Situation(model, numbers(), step)


@right
def a_scale_by_hand() -> Situation:
    return scaled(
        lambda s, one, two: (two * s.get_scale()).backward(),
        inside={"scaler": scaler()},
        factor=1024.0,
    )


@refused("by different factors")
def a_scaler_for_one_of_two_terms() -> Situation:
    return scaled(lambda s, one, two: (s.scale(one) + two).backward())


@refused("but the loss is not scaled")
def a_scaler_that_is_not_used() -> Situation:
    return scaled(lambda s, one, two: two.backward(), inside={"scaler": scaler()})


# -- the order of the examples --------------------------------------------------------------------


def picked(pick: Callable[[Tensor, Tensor], Tensor]) -> Situation:
    """Outputs are put into another order, and labels are or are not: the graph is the same."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(pick(model(x), x[:, 0].argsort().argsort()) * 2, y)
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


def _put(h: Tensor, i: Tensor) -> Tensor:
    return torch.zeros_like(h).index_put((i,), h)


for _name, _pick in {
    "index": lambda h, i: h[i],
    "index_select": lambda h, i: h.index_select(0, i),
    "gather": lambda h, i: h.gather(0, i[:, None].expand(-1, 3)),
    "take_along_dim": lambda h, i: h.take_along_dim(i[:, None], 0),
    "flip": lambda h, i: h.flip(0),
    "roll": lambda h, i: h.roll(1, 0),
    "sort": lambda h, i: h.sort(0)[0],
    "index_copy": lambda h, i: torch.zeros_like(h).index_copy(0, i, h),
    "index_put": _put,
    "index_select_from_the_end": lambda h, i: h.index_select(-2, i),
    "gather_from_the_end": lambda h, i: h.gather(-2, i[:, None].expand(-1, 3)),
    "flip_from_the_end": lambda h, i: h.flip(-2),
    "index_copy_from_the_end": lambda h, i: torch.zeros_like(h).index_copy(-2, i, h),
    "scatter_from_the_end": lambda h, i: torch.zeros_like(h).scatter(
        -2, i[:, None].expand(-1, 3), h
    ),
}.items():
    REFUSED[f"examples_in_another_order_by_{_name}"] = (
        lambda pick=_pick: picked(pick),  # type: ignore[misc]
        "order of the examples",
    )

for _name, _pick in {
    "index": lambda h, i: h[torch.arange(len(h))],
    "index_select": lambda h, i: h.index_select(0, torch.arange(len(h))),
    "flip_of_features": lambda h, i: h.flip(1),
    "sort_of_features": lambda h, i: h.sort(1)[0],
    "copy_of_features": lambda h, i: torch.zeros_like(h).index_copy(-1, torch.tensor([2, 0, 1]), h),
    "features": lambda h, i: h[:, torch.tensor([2, 0, 1])],
}.items():
    RIGHT[f"examples_in_their_order_by_{_name}"] = lambda pick=_pick: picked(pick)  # type: ignore[misc]


@refused("another order than in the loss")
def examples_and_labels_in_another_order_inside() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = torch.tanh(model[0](x))[order]
        loss = F.cross_entropy(model[2](torch.tanh(h)), y[order])
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


@right
def examples_that_are_sorted_and_put_back() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = torch.tanh(torch.tanh(model.first(x))[order] @ model.weight)
        loss = F.cross_entropy(model.out(h[order.argsort()]), y)
        loss.backward()
        return loss

    weight = nn.Parameter(torch.randn(6, 6))
    model = Module(step, first=nn.Linear(4, 6), weight=weight, out=nn.Linear(6, 3))
    return Situation(model, numbers(), step)


@right
def a_place_of_each_example() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x)[torch.arange(len(x)), at], y[:, 0])
        loss.backward()
        return loss

    return Situation(language(), (*tokens(), torch.tensor([3, 0, 5, 1])), step)


def _looked_up(table: Callable[[nn.Module], Tensor], at: list[int]) -> Situation:
    """A table that has as many rows as there are examples."""

    def step(model: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        loss = ((table(model)[at] * x).sum(1) ** 2).mean()
        loss.backward()
        return loss

    model = Module(
        lambda m, x: x,
        table=nn.Parameter(torch.randn(5, 4)),
        more=nn.Parameter(torch.randn(4, 4)),
    )
    return Situation(model, (numbers()[0], torch.tensor(at)), step)


@right
def a_table_of_as_many_rows_as_examples() -> Situation:
    return _looked_up(lambda m: m.table, [3, 0, 1, 3, 4])


@right
def a_table_of_as_many_rows_as_examples_in_order() -> Situation:
    return _looked_up(lambda m: m.table, [0, 0, 1, 3, 4])


@right
def a_table_that_is_computed_of_as_many_rows_as_examples() -> Situation:
    return _looked_up(lambda m: torch.tanh(m.table @ m.more), [0, 0, 1, 3, 4])


@right
def layers_for_some_of_the_examples() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        h, some = torch.tanh(model.body(x)), y > 0
        loss = F.cross_entropy(model.one(h[some]), y[some], reduction="sum")
        loss = loss + F.gelu(model.two(h[~some])).pow(2).sum()
        loss.backward()
        return loss

    model = Module(lambda m, x: x, body=nn.Linear(4, 6), one=nn.Linear(6, 3), two=nn.Linear(6, 2))
    return Situation(model, (numbers()[0], torch.tensor([0, 1, 2, 0, 1])), step)


def _as_many_positions(loss: Callable[..., Tensor]) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = loss(model, x, y)
        found.backward()
        return found

    batch = torch.randn(4, 4, 4).double(), torch.randint(0, 3, (4, 4))
    return Situation(two_layers(), batch, step)


@refused("examples seem to be along another axis")
def as_many_positions_as_examples_and_positions_first() -> Situation:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).transpose(0, 1).flatten(0, 1), y.T.flatten())

    return _as_many_positions(loss)


@refused("examples seem to be along another axis")
def as_many_positions_as_examples_one_after_the_other() -> Situation:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = [F.cross_entropy(model(x[:, t]), y[:, t]) for t in range(4)]
        return torch.stack(each).mean()

    return _as_many_positions(loss)


@right
def as_many_positions_as_examples() -> Situation:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = [model(x[:, t]) for t in range(4)]
        return F.cross_entropy(torch.stack(each, 1).flatten(0, 1), y.flatten())

    return _as_many_positions(loss)


# -- transformations, hooks and parametrisations of PyTorch ----------------------------------------


@right
def a_weight_that_is_a_matrix_exponential() -> Situation:
    layer = nn.Linear(4, 4).double()
    parametrizations.orthogonal(layer, orthogonal_map="matrix_exp")
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 3))
    return Situation(model, numbers(n=4), classify)


@right
def positions_first_and_their_mean() -> Situation:
    x, y = torch.randn(5, 3, 4).double(), torch.randint(0, 3, (3,))
    model = Module(lambda m, x: m.out(torch.tanh(m.inner(x))).mean(0))
    model.inner, model.out = nn.Linear(4, 4), nn.Linear(4, 3)  # as many classes as examples
    return Situation(model, (x, y), classify, axis=1)


@right
def a_hook_on_several_parameters() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen: list[int] = []
        tensors = tuple(model.parameters())
        handle = register_multi_grad_hook(tensors, lambda grads: seen.append(len(grads)))
        loss = classify(model, x, y)
        handle.remove()
        assert seen
        return loss

    return Situation(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), numbers(), step)


# -- operations that only lower precision has -----------------------------------------------------


def an_lstm_in_one_operation() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        every, (last, cell) = m.recurrent(x)
        return m.out(torch.cat([every[:, 2], last[1], cell[0]], 1))

    recurrent = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    return Situation(
        Module(forward, recurrent=recurrent, out=nn.Linear(12, 3)), sequences(), classify
    )


def experts_in_one_product() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        flat = m.first(x).flatten(0, 1)
        weight, chosen = (flat @ m.router).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=3).cumsum(0).to(torch.int32)
        made = F.grouped_mm(flat[order], m.fused.transpose(1, 2), offs=ends)
        made = torch.zeros_like(made).index_copy(0, order, made * weight[order, None])
        return m.out(made.view(*x.shape[:2], -1).mean(1))

    model = Module(
        forward,
        first=nn.Linear(4, 8),
        router=nn.Parameter(torch.randn(8, 3)),
        fused=nn.Parameter(torch.randn(3, 8, 8)),
        out=nn.Linear(8, 3),
    )
    return Situation(model, sequences(), classify)


SINGLE = {each.__name__: each for each in (an_lstm_in_one_operation, experts_in_one_product)}
