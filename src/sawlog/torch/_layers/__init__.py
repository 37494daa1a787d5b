"""Layer rules: per-example gradients of a module from its inputs and output gradients."""

from __future__ import annotations

from sawlog.torch._layers import _attention, _conv, _embedding, _linear, _norm, _rms_norms
from sawlog.torch._layers._function import FunctionRule as FunctionRule
from sawlog.torch._layers._general import GeneralRule as GeneralRule
from sawlog.torch._layers._general import general as general
from sawlog.torch._layers._registry import register_layer as register_layer
from sawlog.torch._layers._registry import rule_for as rule_for
from sawlog.torch._layers._rule import Part as Part
from sawlog.torch._layers._rule import Rule as Rule
from sawlog.torch._layers._rule import Use as Use

del (
    _attention,
    _conv,
    _embedding,
    _linear,
    _norm,
    _rms_norms,
)  # imported because they register rules

__all__ = [
    "FunctionRule",
    "GeneralRule",
    "Part",
    "Rule",
    "Use",
    "general",
    "register_layer",
    "rule_for",
]
