"""Programs whose examples interact without a gradient, and programs that look alike."""

import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from tests.torch.programs import Program


class Net(nn.Module):
    """Two layers, between which a function changes the hidden features."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.norm, self.batch_norm = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.batch_norm.running_mean += 0.1

    def forward(self, x, change=lambda h: h):
        return self.second(change(torch.tanh(self.first(x))))


def hidden(change):
    """A program that changes hidden features."""
    return lambda model, x, y: F.cross_entropy(model(x, change), y)


def losses_of(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def by_statistics_without_gradients(h):
    with torch.no_grad():
        mean, var = h.mean(0), h.var(0)
    return (h - mean) / (var + 1e-5).sqrt()


def mixed_up(h):
    order = torch.arange(len(h)).roll(1)
    return 0.7 * h + 0.3 * h[order].detach()


def sharpness_aware(model, x, y):
    """The loss at weights that went up along the gradient of the batch."""
    weights = dict(model.named_parameters())
    weights = {name: weights[name] for name in ("first.weight", "second.weight")}
    grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(weights.values()))
    moved = {n: w + 0.5 * g for (n, w), g in zip(weights.items(), grads, strict=True)}
    return F.cross_entropy(torch.func.functional_call(model, moved, (x,)), y)


def over_itself(model, x, y):
    loss = 9 * losses_of(model, x, y).mean()
    return loss / loss.detach()


def hard_examples(model, x, y):
    each = losses_of(model, x, y)
    return (each * (each.detach() > each.detach().median())).mean()


def balanced(model, x, y):
    out, share, chosen = model(x)
    used = F.one_hot(chosen, 2).double().mean(0)  # a fraction of the batch
    return F.cross_entropy(out, y) + 2 * (share * used).sum(1).mean()


def routed(model, x, y):
    return F.cross_entropy(model(x)[0], y)


WRONG = {  # the program, and what the error names
    "centred": (hidden(lambda h: h - h.detach().mean(0)), "mean"),
    "divided by the greatest": (hidden(lambda h: h / h.detach().abs().max()), "max|div"),
    "statistics without gradients": (hidden(by_statistics_without_gradients), "mean"),
    "standardised by .data": (hidden(lambda h: h / h.data.std()), "std"),
    "a Python number": (hidden(lambda h: h / h.std().item()), "std"),
    "a number of a Python number": (hidden(lambda h: h * (1 - h.mean().item())), "mean"),
    "mixup of features": (hidden(mixed_up), "add"),
    "centred logits": (
        lambda model, x, y: F.cross_entropy(model(x) - model(x).detach().mean(0), y),
        "mean",
    ),
    "sharpness": (sharpness_aware, "nll_loss_forward"),
    "over itself": (over_itself, None),
    "over the greatest loss": (
        lambda m, x, y: (lambda each: (each / each.detach().max()).mean())(losses_of(m, x, y)),
        "max|div",
    ),
    "hard examples": (hard_examples, "median"),
    "ranks": (
        lambda m, x, y: (lambda each: (each * each.detach().argsort().argsort()).mean())(
            losses_of(m, x, y)
        ),
        "sort",
    ),
    "weights of the batch": (
        lambda m, x, y: (lambda each: (each * (each.detach() - each.detach().mean()).sigmoid()))(
            losses_of(m, x, y)
        ).mean(),
        "mean",
    ),
    "a running statistic": (None, "mean"),
    "balanced experts": (balanced, "mean"),
}  # fmt: skip


def with_running_mean():
    """A buffer that is changed in place, and then used."""
    mean = torch.zeros(6).double()

    def change(h):
        mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - mean

    return hidden(change)


def padded(model, x, y):
    """By the longest of the batch, with a mask."""
    h = F.pad(torch.tanh(model.first(x)), (0, 0, 0, 3))
    return F.cross_entropy(model.second(h)[: len(y)], y)


def attended(model, x, y):
    """Over three positions of each example, of which a mask hides one."""
    h = model.first(x)[:, None] * torch.tensor([1.0, -0.5, 2.0]).double()[:, None]
    mask = torch.tensor([True, True, False])
    h = F.scaled_dot_product_attention(h, h, h, attn_mask=mask, dropout_p=0.2)
    return F.cross_entropy(model.second(h.mean(1)), y)


def noted(model, x, y):
    """Statistics of the batch that are only looked at."""
    out = model(x)
    noted.seen = (out.detach().mean(0), out.std().item(), bool(torch.isfinite(out).all()))
    return F.cross_entropy(out, y)


def remembered(model, x, y):
    """A buffer that is changed in place, and not used."""
    h = torch.tanh(model.first(x))
    remembered.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return F.cross_entropy(model.second(h), y)


remembered.mean = torch.zeros(6).double()


RIGHT = {
    "plain": hidden(lambda h: h),
    "each over its norm": hidden(lambda h: h / h.detach().norm(dim=1, keepdim=True)),
    "each centred": hidden(lambda h: h - h.detach().mean(1, keepdim=True)),
    "layer norm": lambda m, x, y: F.cross_entropy(m(x, m.norm), y),
    "eval batch norm": lambda m, x, y: F.cross_entropy(m(x, m.batch_norm), y),
    "a constant": hidden(lambda h: h / torch.tensor(1.234567891).double().item()),
    "confidence": lambda m, x, y: (
        losses_of(m, x, y) * m(x).detach().softmax(1).amax(1)
    ).mean(),
    "its own rank": hidden(lambda h: h * h.detach().argsort(1).argsort(1)),
    "the greatest, for numbers": lambda m, x, y: (
        lambda z: -(z - (z - z.detach().max()).exp().sum(1).log()[:, None] - z.detach().max())[
            torch.arange(len(z)), y
        ].mean()
    )(m(x)),
    "a constant of the batch": lambda m, x, y: (
        lambda each: (each - each.detach().mean()).mean()
    )(losses_of(m, x, y)),
    "smoothed labels": lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    "counted": lambda m, x, y: (
        lambda each, there: (each * there).sum() / there.sum()
    )(m(x).exp(), (m(x).detach() > 0).double()),
    "in place": hidden(lambda h: (h + 1).mul_(2).sin_().relu_()),
    "padded": padded,
    "checkpointed": lambda m, x, y: F.cross_entropy(
        torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False), y
    ),
    "noted": noted,
    "remembered": remembered,
}  # fmt: skip
RANDOM = {
    "dropout": hidden(lambda h: F.dropout(h, 0.3)),
    "attention with dropout": attended,
    "noise": hidden(lambda h: h + 0.1 * torch.randn_like(h)),
}
WRONG["a running statistic"] = (with_running_mean(), "mean")


def program_of(loss, size=6, kind=Net):
    torch.manual_seed(0)
    model = kind().double().eval() if kind is Net else kind().double()
    return Program(model, (torch.randn(size, 4).double(), torch.arange(size) % 3), loss)


def run_of(tmp_path, program, **options):
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(**options)
    names = [n for n, p in program.model.named_parameters() if "norm" not in n]
    return run, run.watch(program.model, names, quiet=True)
