"""Per-example capture for PyTorch: gradients and activations of each example, by hooks.

>>> import tempfile, torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> run = init(project="demo", root=tempfile.mkdtemp())
>>> run.setup(compress=2)
>>> run.watch(model, quiet=True).bytes_per_example
32
"""

from __future__ import annotations

from sawlog._optional import require

require("torch", "torch", "sawlog.torch")  # before anything below imports it

from sawlog.capture._check import Check as Check
from sawlog.capture._current import build_log_dataloader as build_log_dataloader
from sawlog.capture._current import build_log_dataset as build_log_dataset
from sawlog.capture._current import check as check
from sawlog.capture._current import clear as clear
from sawlog.capture._current import end as end
from sawlog.capture._current import eval as eval
from sawlog.capture._current import extract as extract
from sawlog.capture._current import finalize as finalize
from sawlog.capture._current import get_log as get_log
from sawlog.capture._current import setup as setup
from sawlog.capture._current import start as start
from sawlog.capture._current import watch as watch
from sawlog.capture._extract import Extraction as Extraction
from sawlog.torch._current import current as current
from sawlog.torch._current import init as init
from sawlog.torch._gauss_newton import gauss_newton as gauss_newton
from sawlog.torch._layers import Part as Part
from sawlog.torch._layers import Rule as Rule
from sawlog.torch._layers import Use as Use
from sawlog.torch._layers import register_layer as register_layer
from sawlog.torch._rank_executor import RankExecutor as RankExecutor
from sawlog.torch._run import Run as Run
from sawlog.torch._second_moments import second_moments as second_moments
from sawlog.torch._training._training_capture import TrainingCapture as TrainingCapture

__all__ = [
    "Check",
    "Extraction",
    "Part",
    "RankExecutor",
    "Rule",
    "Run",
    "TrainingCapture",
    "Use",
    "build_log_dataloader",
    "build_log_dataset",
    "check",
    "clear",
    "current",
    "end",
    "eval",
    "extract",
    "finalize",
    "gauss_newton",
    "get_log",
    "init",
    "register_layer",
    "second_moments",
    "setup",
    "start",
    "watch",
]
