"""Fragments of models, each with shapes of its parameters and of one example."""

from . import cases_programs, cases_uses
from .cases_base import CASES, Case

SECTIONS = (cases_uses, cases_programs)

__all__ = ["CASES", "SECTIONS", "Case"]
