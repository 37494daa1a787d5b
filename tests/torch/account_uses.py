"""Programs that use parameters in all sorts of ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .account_base import (
    RIGHT,
    Module,
    Situation,
    classify,
    numbers,
    predict,
    right,
    sequences,
    tokens,
    two_layers,
)


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


def applied(to: Any) -> Situation:
    """An operation on outputs and a parameter that has no function for all examples at once."""
    model = Module(
        lambda m, x: m.out(to(m.first(x), m.scale)),
        first=nn.Linear(4, 6),
        scale=nn.ParameterList([nn.Parameter(torch.rand(6) + 0.5)]),
        out=nn.Linear(6, 3),
    )
    return Situation(model, numbers(), classify)


for _name, _to in {
    "angles_with_a_parameter": lambda h, scale: torch.atan2(h, scale[0]),
    "slopes_of_single_channels": lambda h, scale: F.prelu(h, scale[0]),
    "a_step_towards_a_parameter": lambda h, scale: torch.lerp(h, scale[0], 0.3),
    "a_parameter_that_several_tensors_are_compared_with": lambda h, scale: (
        torch.maximum(h, scale[0]) + torch.hypot(h, scale[0])
    ),
}.items():
    RIGHT[_name] = lambda to=_to: applied(to)  # type: ignore[misc]


@right
def a_part_of_lower_precision() -> Situation:
    """Gradients of single precision in a model of double precision, rounded more than most."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.first(x).float()
        return m.out(torch.tanh(70 * h - 69 * h).double())

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)
