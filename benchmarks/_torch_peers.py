"""Other tools capturing the same gradients: same layers, same rank, from an empty folder to disk.

Each runs as its documentation says, on a copy of the model, since some change it. Those that know
no ``Conv1D`` get the same layers as ``nn.Linear``. Where a tool does not sync its files, they are
synced for it, as for all the others. One that is not installed is left out.

Each function sets its tool up and returns what is then timed: some take seconds to make
projections, which would count for more here than in a long run.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _torch_models import RANK, Case
from torch import Tensor, nn

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
logging.disable(logging.INFO)

Go = Callable[[], None]


def _synced(case: Case, folder: Path) -> None:
    """Sync all files, and see that there is as much as there should be.

    LogIX makes both sides of the MLP's last layer as small as the smaller one: 6 % fewer values.
    """
    total = 0
    for path in folder.rglob("*"):
        if path.is_file():
            total += path.stat().st_size
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    need = 4 * case.values * case.examples
    assert total >= 0.93 * need, f"only {total} of {need} bytes are on disk"


def _with_linear(case: Case) -> nn.Module:
    """A copy of the model whose watched layers are ``nn.Linear``."""
    model = copy.deepcopy(case.model)
    for name, layer in case.layers.items():
        if not isinstance(layer, nn.Linear):
            linear = nn.Linear(*layer.weight.shape)
            linear.load_state_dict({"weight": layer.weight.T, "bias": layer.bias})
            model.set_submodule(name, linear)
    return model


def logix(case: Case, folder: Path) -> Go:
    """LoRA modules of rank 64 whose gradients are the projected ones."""
    from logix import LogIX

    model = _with_linear(case)
    config = folder / "config.yaml"
    config.write_text(f"root_dir: {folder}\nlora:\n  init: random\n  rank: {RANK}\n")
    run = LogIX(project="run", config=str(config))
    run.watch(model, name_filter=list(case.layers))
    run.add_lora()
    run.setup({"grad": ["log"]})
    run.save(True)

    def go() -> None:
        start = 0
        for batch in case.batches:
            size = len(batch[0])
            with run(data_id=[str(i) for i in range(start, start + size)]):
                model.zero_grad()
                (case.loss(model, batch) * size).backward()
            start += size
        run.finalize()
        _synced(case, folder)

    return go


def bergson(case: Case, folder: Path) -> Go:
    """Its collector, without its runner, which takes language models only."""
    from bergson.collector.gradient_collectors import GradientCollector
    from bergson.config import IndexConfig
    from bergson.gradients import GradientProcessor
    from datasets import Dataset

    model = copy.deepcopy(case.model)
    if not hasattr(model, "device"):
        model.device = torch.device("cpu")
    data = Dataset.from_dict({"input_ids": [[0]] * case.examples, "length": [1] * case.examples})
    collector = GradientCollector(
        model=model,
        target_modules=set(case.layers),
        data=data,
        cfg=IndexConfig(run_path=str(folder / "run"), projection_dim=RANK, include_bias=True),
        processor=GradientProcessor(projection_dim=RANK, include_bias=True),
    )

    def go() -> None:
        start = 0
        for inputs, targets in case.batches:
            size = len(inputs)
            with collector:
                loss = _loss(case, model, *_with_positions(inputs, targets))
                (loss * size).backward()
                model.zero_grad()
            collector.process_batch(
                list(range(start, start + size)), losses=loss.detach().expand(size)
            )
            start += size
        collector.teardown()
        _synced(case, folder)

    return go


def _with_positions(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The MLP's data with an axis of positions, which some want."""
    if not inputs.is_floating_point():
        return inputs, targets
    return inputs[:, None], targets[:, None]


def _loss(case: Case, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    if not inputs.is_floating_point():
        return case.loss(model, (inputs, targets))
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def dattri(case: Case, folder: Path) -> Go:
    """LoGra kept in memory, since its files need CUDA; then saved with torch."""
    from dattri.algorithm.logra import LoGraAttributor
    from dattri.task import AttributionTask

    model = _with_linear(case)

    def loss(model: nn.Module, batch: Any, device: str) -> Tensor:
        inputs, targets = [batch["input_ids"]] * 2 if isinstance(batch, dict) else batch
        return _loss(case, model, inputs, targets) * len(inputs)

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    way = LoGraAttributor(
        task,
        layer_names=list(case.layers),
        hessian="Identity",
        proj_dim=RANK * RANK,
        offload="cpu",
        cache_dir=str(folder),
    )
    inputs, targets = (torch.cat(each) for each in zip(*case.batches, strict=True))
    rows: Any = torch.utils.data.TensorDataset(*_with_positions(inputs, targets))
    if not inputs.is_floating_point():  # it tells language models by that
        rows = [{"input_ids": each} for each in inputs]
    loader = torch.utils.data.DataLoader(rows, batch_size=len(case.batches[0][0]))
    way._setup_compressors(loader)

    def go() -> None:
        way.cache(loader)
        torch.save(way.offload_manager.cached_gradients, folder / "rows.pt")
        _synced(case, folder)

    return go


_ALL: dict[str, Callable[[Case, Path], Go]] = {
    "LogIX": logix,
    "bergson": bergson,
    "dattri": dattri,
}
PEERS = {name: way for name, way in _ALL.items() if importlib.util.find_spec(name.lower())}
