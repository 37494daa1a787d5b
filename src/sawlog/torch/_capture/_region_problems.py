"""Why a compiled module must run as it is written in batches that are captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from sawlog.torch._proof._plan import Plan


def region_problems(
    plan: Plan | None, parameters: Mapping[str, Tensor], checkpointed: bool
) -> Callable[[nn.Module], str | None]:
    """Return a function that says why a module must run as it is written; None if it need not.

    Args:
        plan: of the batch that was proven; None if it held for that batch alone.
        parameters: the watched parameters, by name.
        checkpointed: whether a part of the forward pass runs again in the backward pass.
    """
    names = () if plan is None else [name for use in plan.uses for name in use.parameters]

    def problem(module: nn.Module) -> str | None:
        inside = {id(each) for each in module.parameters()}
        if checkpointed:
            return "it is checkpointed, and would be computed again outside of compiled code"
        if plan is None:
            return "where its examples are has to be found again in every batch"
        if plan.zeros:
            return "some gradients in it were zero, so that their proof showed nothing"
        if plan.picks:
            return "it picks by values, which may belong to other examples in another batch"
        for name in names:
            if id(parameters[name]) in inside:
                return f"the parameter {name} is used outside of the layers that have rules"
        return None

    return problem
