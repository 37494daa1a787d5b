"""Hugging Face: Trainers that log per-example gradients, and callbacks that log while training.

>>> from sawlog.huggingface import LogArguments, patch_trainer
>>> from transformers import Trainer
>>> LogTrainer = patch_trainer(Trainer)

``LogTrainer(log_args=LogArguments("my_project", lora=True), model=..., args=...)`` is a Trainer
with ``extract_log()``, ``influence()`` and ``self_influence()``.
"""

from __future__ import annotations

from sawlog._optional import require

require("torch", "torch", "sawlog.huggingface")
require("transformers", "huggingface", "sawlog.huggingface")  # before anything below imports it

from sawlog.huggingface._arguments import LogArguments as LogArguments
from sawlog.huggingface._callback import SawlogCallback as SawlogCallback
from sawlog.huggingface._patch import patch_trainer as patch_trainer
from sawlog.huggingface._scores import add_scores as add_scores
from sawlog.logix import LogIXArguments as LogIXArguments

__all__ = ["LogArguments", "LogIXArguments", "SawlogCallback", "add_scores", "patch_trainer"]
