"""Rules, and the fallback without one, where an example has rows side by side, or apart."""

import pytest
import torch
from torch import nn

from sawlog.factored import gradient
from sawlog.torch._layers import rule_for
from sawlog.torch._layers._general import general
from sawlog.torch._layers._rule import Use


@pytest.mark.parametrize("minor", [None, False, True])
@pytest.mark.parametrize(("by_rule", "axis"), [(False, 0), (True, 0), (True, 1)])
def test_several_rows_of_each_example(by_rule, axis, minor):
    torch.manual_seed(0)
    module = nn.Linear(4, 5, bias=False).double()
    shape = (6, 2) if axis == 0 else (2, 6)
    x, grad = torch.randn(*shape, 4).double(), torch.randn(*shape, 5).double()
    rule = rule_for(module) if by_rule else general()
    found = gradient(rule.pairs(module, Use((x,), {}, grad, 3, axis, minor))["weight"])
    apart = axis == 1 if minor is None else minor
    places = [[b, b + 3] if apart else [2 * b, 2 * b + 1] for b in range(3)]
    for b, own in enumerate(places):
        left, right = (each.movedim(axis, 0)[own].flatten(0, 1) for each in (grad, x))
        assert torch.allclose(found[b], left.mT @ right, rtol=1e-12)
