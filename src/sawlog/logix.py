"""LogIX's API: programs written for LogIX run with this import in place of ``import logix``.

>>> import tempfile, torch
>>> from sawlog.logix import DataIDGenerator, LogIX, LogIXScheduler
>>> model, x = torch.nn.Linear(3, 2), torch.randn(6, 3)
>>> run, name = LogIX("example", {"root_dir": tempfile.mkdtemp()}), DataIDGenerator()
>>> _ = run.watch(model)
>>> for epoch in LogIXScheduler(run, hessian="kfac", save="grad"):
...     with run(data_id=name(x)):
...         model(x).square().sum().backward()
...     run.finalize()
>>> run.eval()
>>> with run(data_id=name(x[:1])):
...     model(x[:1]).square().sum().backward()
>>> run.influence.compute_influence_all(run.get_log(), damping=1e-3)["influence"].shape
torch.Size([1, 6])

``import sawlog.logix as logix`` takes the place of ``import logix``. Names of its submodules are in
``sawlog.utils``, ``sawlog.analysis``, ``sawlog.huggingface`` and ``sawlog.lightning``.
"""

from __future__ import annotations

from sawlog._optional import require

require("torch", "torch", "sawlog.logix")  # before anything below imports it

from sawlog.run_files._logix_config import LoggingConfig as LoggingConfig
from sawlog.run_files._logix_config import LoRAConfig as LoRAConfig
from sawlog.torch import build_log_dataloader as build_log_dataloader
from sawlog.torch import build_log_dataset as build_log_dataset
from sawlog.torch import clear as clear
from sawlog.torch import end as end
from sawlog.torch import eval as eval
from sawlog.torch import finalize as finalize
from sawlog.torch import get_log as get_log
from sawlog.torch import setup as setup
from sawlog.torch import start as start
from sawlog.torch import watch as watch
from sawlog.torch._current import add_analysis as add_analysis
from sawlog.torch._current import add_lora as add_lora
from sawlog.torch._current import init_logix as init
from sawlog.torch._current import initialize_from_log as initialize_from_log
from sawlog.torch._logix._arguments import LogIXArguments as LogIXArguments
from sawlog.torch._logix._influence import LogixInfluence as InfluenceFunction
from sawlog.torch._logix._names import DataIDGenerator as DataIDGenerator
from sawlog.torch._logix._names import get_rank as get_rank
from sawlog.torch._logix._names import get_world_size as get_world_size
from sawlog.torch._logix._names import merge_logs as merge_logs
from sawlog.torch._logix._run import LogIX as LogIX
from sawlog.torch._logix._scheduler import LogIXScheduler as LogIXScheduler

__all__ = [
    "DataIDGenerator",
    "InfluenceFunction",
    "LoRAConfig",
    "LogIX",
    "LogIXArguments",
    "LogIXScheduler",
    "LoggingConfig",
    "add_analysis",
    "add_lora",
    "build_log_dataloader",
    "build_log_dataset",
    "clear",
    "end",
    "eval",
    "finalize",
    "get_log",
    "get_rank",
    "get_world_size",
    "init",
    "initialize_from_log",
    "merge_logs",
    "setup",
    "start",
    "watch",
]
