"""Scores of other tools for the same checkpoint, the same images: the rows beside ours.

Each runs as its documentation says, on a copy of the model, since some change it. What its options
are is said beside it: the defaults, or those of its own examples where a default is missing or
makes no sense for a thousand images. Scores are positive where an image helps, `[test, train]`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _lds import Data
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

Way = Callable[..., np.ndarray]
BATCH, RANK = 250, 16


@dataclasses.dataclass(frozen=True)
class Peer:
    """A method of another tool, and the package it comes from."""

    name: str
    package: str
    way: Way
    slow: bool = False


def train_set(data: Data) -> TensorDataset:
    return TensorDataset(data.x, data.y)


def test_set(data: Data) -> TensorDataset:
    return TensorDataset(data.test_x, data.test_y)


def _loader(examples: TensorDataset, size: int = BATCH) -> DataLoader:
    return DataLoader(examples, batch_size=size)


# -- LogIX ----------------------------------------------------------------------------------------


def _logix(
    model: nn.Module, data: Data, folder: Path, seed: int, hessian: str, lora: str
) -> np.ndarray:
    """As in its example for MNIST, with the damping that it chooses itself."""
    from logix import LogIX, LogIXScheduler

    config = folder / "config.yaml"
    config.write_text(f"root_dir: {folder}\nlora:\n  init: random\n  rank: {RANK}\n")
    run = LogIX(project="lds", config=str(config))
    run.watch(model)
    for _ in LogIXScheduler(run, lora=lora, hessian=hessian, save="grad"):
        for ids, (x, y) in zip(_ids(data.x), _loader(train_set(data)), strict=True):
            with run(data_id=ids):
                model.zero_grad()
                F.cross_entropy(model(x), y, reduction="sum").backward()
        run.finalize()
    rows = run.build_log_dataloader()
    run.setup({"grad": ["log"]})
    run.eval()
    with run(data_id=[f"test {i}" for i in range(len(data.test_x))]):
        model.zero_grad()
        F.cross_entropy(model(data.test_x), data.test_y, reduction="sum").backward()
    found = run.influence.compute_influence_all(run.get_log(), rows)
    assert found["tgt_ids"] == [str(i) for i in range(len(data.x))]
    return found["influence"].numpy()


def _ids(x: Tensor) -> Iterator[list[str]]:
    for some in torch.arange(len(x)).split(BATCH):
        yield [str(int(i)) for i in some]


# -- kronfluence ----------------------------------------------------------------------------------


def classification() -> Any:
    """The task of its examples: cross entropy, summed; the measurement is the loss."""
    from kronfluence.task import Task

    class Classification(Task):
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            x, y = batch
            logits = model(x)
            if sample:
                with torch.no_grad():
                    y = torch.multinomial(logits.softmax(-1), 1).flatten()
            return F.cross_entropy(logits, y, reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    return Classification()


def analyzer_of(model: nn.Module, folder: Path) -> Any:
    """Its analyzer for a model, which it changes."""
    from kronfluence.analyzer import Analyzer, prepare_model

    task = classification()
    return Analyzer(
        "run",
        prepare_model(model, task),
        task,
        cpu=True,
        disable_tqdm=True,
        output_dir=str(folder),
        log_level=logging.ERROR,
    )


def _kronfluence(
    model: nn.Module, data: Data, folder: Path, seed: int, empirical: bool, damping: float | None
) -> np.ndarray:
    """EK-FAC, of the labels or of sampled ones; 1e-8 is its default, None its heuristic."""
    from kronfluence.arguments import FactorArguments, ScoreArguments

    analyzer = analyzer_of(model, folder)
    analyzer.fit_all_factors(
        "factors",
        train_set(data),
        per_device_batch_size=BATCH,
        factor_args=FactorArguments(strategy="ekfac", use_empirical_fisher=empirical),
    )
    analyzer.compute_pairwise_scores(
        "scores",
        factors_name="factors",
        query_dataset=test_set(data),
        train_dataset=train_set(data),
        per_device_query_batch_size=len(data.test_x),
        per_device_train_batch_size=BATCH,
        score_args=ScoreArguments(damping_factor=damping),
    )
    return analyzer.load_pairwise_scores("scores")["all_modules"].numpy()


# -- dattri ---------------------------------------------------------------------------------------


def _dattri(
    model: nn.Module, data: Data, folder: Path, seed: int, kind: str, **options: Any
) -> np.ndarray:
    """Influence functions of whole gradients, with the options of its examples.

    EK-FAC has those of its tests: by default it is not damped, and divides by the zeros of units
    that no image reaches.
    """
    from dattri.algorithm import influence_function
    from dattri.task import AttributionTask

    def loss(params: Any, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(torch.func.functional_call(model, params, x), y)

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    way = getattr(influence_function, f"IFAttributor{kind}")(task=task, **options)
    rows = _loader(train_set(data), len(data.x))  # once over the test images, not once a batch
    way.cache(rows)
    with torch.no_grad():
        found = way.attribute(rows, _loader(test_set(data), len(data.test_x)))
    return found.T.numpy()


class _WithPositions(nn.Module):
    """The model for images with an axis of one position, without which LoGra does not start."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x[..., None, :])[..., 0, :]


def _dattri_logra(model: nn.Module, data: Data, folder: Path, seed: int) -> np.ndarray:
    """LoGra and the Fisher of projected gradients, with the damping of its example for MNIST."""
    from dattri.algorithm.logra import LoGraAttributor
    from dattri.task import AttributionTask

    def loss(model: nn.Module, batch: Any, device: str) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    model = _WithPositions(model)
    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    options = {"hessian": "eFIM", "damping": 5e-3, "offload": "cpu"}
    way = LoGraAttributor(task, proj_dim=RANK * RANK, cache_dir=str(folder), **options)
    rows = _loader(train_set(data))
    way.cache(rows)
    return way.attribute(rows, _loader(test_set(data))).T.numpy()


def _dattri_llm(model: nn.Module, data: Data, folder: Path, seed: int, kind: str) -> np.ndarray:
    """Its K-FAC or EK-FAC with the default damping, gradients made as they are needed."""
    import dattri_llm
    from dattri_llm import AttributionArguments, AttributionTask

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")

    def rows(x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
        return [{"x": one, "y": label} for one, label in zip(x, y, strict=True)]

    sizes = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH}
    options = AttributionArguments(output_dir=str(folder), use_cpu=True, **sizes)
    way = getattr(dattri_llm, f"{kind}Attributor")(options, task=AttributionTask(loss, model))
    train, test = rows(data.x, data.y), rows(data.test_x, data.test_y)
    return way.attribute(train, test).scores.T.numpy()


# -- TRAK -----------------------------------------------------------------------------------------


def _trak(model: nn.Module, data: Data, folder: Path, seed: int, size: int) -> np.ndarray:
    """Its projector for CPUs, in float32.

    By default it projects to 2,048, more than there are images, and does not damp; the fewer the
    better here, and it does not score with less than two blocks of 100.
    """
    from trak import TRAKer

    run = TRAKer(
        model=model,
        task="image_classification",
        train_set_size=len(data.x),
        save_dir=str(folder),
        device="cpu",
        proj_dim=size,
        use_half_precision=False,
        logging_level=logging.ERROR,
    )
    run.load_checkpoint(model.state_dict(), model_id=seed)
    for batch in _loader(train_set(data)):
        run.featurize(batch=batch, num_samples=len(batch[0]))
    run.finalize_features()
    run.start_scoring_checkpoint("test", model.state_dict(), seed, num_targets=len(data.test_x))
    for batch in _loader(test_set(data)):
        run.score(batch=batch, num_samples=len(batch[0]))
    return np.array(run.finalize_scores("test")).T


# -- bergson --------------------------------------------------------------------------------------


def _bergson(model: nn.Module, data: Data, folder: Path, seed: int) -> np.ndarray:
    """Its collectors, without its runner, which takes language models only; its default damping.

    Rank 16 is the default of its queries; the Hessian is the autocorrelation of gradients.
    """
    from bergson import Attributor

    model.device = torch.device("cpu")  # as those models have
    index = _collected(model, data.x, data.y, folder / "index", hessian=True)
    query = _collected(model, data.test_x, data.test_y, folder / "queries", hessian=False)
    way = Attributor(index[0], device="cpu", dtype=torch.float32, hessian_path=index[0])
    values, places = way.search(query[1], None)
    return torch.empty_like(values).scatter_(1, places, values).numpy()


def _collected(
    model: nn.Module, x: Tensor, y: Tensor, folder: Path, hessian: bool
) -> tuple[Path, dict[str, Tensor]]:
    from bergson import Builder, GradientProcessor, IndexConfig, InMemoryCollector, PreprocessConfig
    from datasets import Dataset

    processor = GradientProcessor(projection_dim=RANK, include_bias=True)
    rows = Dataset.from_dict({"input_ids": [[0]] * len(x), "length": [1] * len(x)})
    collector = InMemoryCollector(
        model=model,
        data=rows,
        cfg=IndexConfig(run_path=str(folder), projection_dim=RANK, include_bias=True),
        processor=processor,
        skip_hessians=not hessian,
    )
    for places, xs, ys in zip(
        torch.arange(len(x)).split(BATCH), x.split(BATCH), y.split(BATCH), strict=True
    ):
        with collector:
            loss = F.cross_entropy(model(xs[:, None])[:, 0], ys, reduction="sum")
            loss.backward()
            model.zero_grad()
        collector.process_batch(places.tolist(), losses=loss.detach().expand(len(xs)))
    collector.teardown()
    sizes = {name: each.shape[1] for name, each in collector.gradients.items()}
    builder = Builder(rows, sizes, torch.float32, PreprocessConfig(), path=folder)
    builder(list(range(len(x))), collector.gradients)
    builder.teardown()
    processor.save(folder)
    return folder, collector.gradients


# -- all of them ----------------------------------------------------------------------------------


_with = functools.partial


ALL = (
    Peer("LogIX K-FAC", "logix", _with(_logix, hessian="kfac", lora="none")),
    Peer("LogIX EK-FAC", "logix", _with(_logix, hessian="ekfac", lora="none")),
    Peer("LogIX raw", "logix", _with(_logix, hessian="raw", lora="none")),
    Peer("LogIX LoGra rank 16, raw", "logix", _with(_logix, hessian="raw", lora="random")),
    Peer(
        "kronfluence EK-FAC, damping 1e-8",
        "kronfluence",
        _with(_kronfluence, empirical=True, damping=1e-8),
    ),
    Peer(
        "kronfluence EK-FAC, heuristic",
        "kronfluence",
        _with(_kronfluence, empirical=True, damping=None),
    ),
    Peer(
        "kronfluence EK-FAC, sampled labels",
        "kronfluence",
        _with(_kronfluence, empirical=False, damping=1e-8),
    ),
    Peer(
        "dattri conjugate gradients",
        "dattri",
        _with(_dattri, kind="CG", max_iter=10, regularization=1e-2),
        slow=True,
    ),
    Peer(
        "dattri Arnoldi",
        "dattri",
        _with(_dattri, kind="Arnoldi", max_iter=10, regularization=1e-2),
    ),
    Peer("dattri EK-FAC, damping 0.1", "dattri", _with(_dattri, kind="EKFAC", damping=0.1)),
    Peer("dattri LoGra rank 16", "dattri", _dattri_logra),
    Peer("dattri-llm K-FAC", "dattri_llm", _with(_dattri_llm, kind="KFAC")),
    Peer("dattri-llm EK-FAC", "dattri_llm", _with(_dattri_llm, kind="EKFAC")),
    Peer("TRAK, 2,048 dimensions", "trak", _with(_trak, size=2048)),
    Peer("TRAK, 128 dimensions", "trak", _with(_trak, size=128)),
    Peer("bergson rank 16, Fisher", "bergson", _bergson),
)
PEERS = tuple(peer for peer in ALL if importlib.util.find_spec(peer.package))


def missing() -> list[str]:
    """The packages that are not installed."""
    return sorted({peer.package for peer in ALL} - {peer.package for peer in PEERS})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what others print, log and warn of."""
    before = logging.root.manager.disable
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def scores_of(peer: Peer, model: nn.Module, data: Data, folder: Path, seed: int) -> np.ndarray:
    """What a peer finds for one checkpoint, with a copy of the model and a folder of its own.

    The seed is for what is drawn at random: another one for each checkpoint.
    """
    folder.mkdir()
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        found = peer.way(copy.deepcopy(model), data, folder, seed)
    assert found.shape == (len(data.test_x), len(data.x))
    return np.ascontiguousarray(found, np.float32)
