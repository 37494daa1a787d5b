"""One process of a ``lightning.Trainer`` with DDP; started by test_ranks.py."""

import os
import sys
from pathlib import Path

import torch

import sawlog.store
from sawlog.lightning import SawlogCallback
from tests.lightning.test_lightning import ByHand, Module, alone, assert_rows, loader, trainer


def main(path: Path) -> None:
    torch.set_num_threads(1)
    given = dict(os.environ)
    ddp = {"devices": int(given["WORLD_SIZE"]), "strategy": "ddp"}
    for name, module, options in (
        ("accumulated", Module(), {"accumulate_grad_batches": 2}),
        ("by hand", ByHand(True), {}),
    ):
        os.environ.update(given)  # lightning takes some of it away
        fits = trainer(path, callbacks=[SawlogCallback(name, root=path)], **ddp, **options)
        fits.fit(module, loader(many=11))
        fits.strategy.barrier()
        folder = path / name / "epoch-0"
        assert_rows(folder / "logs" / "whole-float32", alone(module, 11), range(11), "model.")
        with sawlog.store.open(folder / "steps") as steps:
            assert sorted(steps.ids("step").tolist()) == list(range(11))
        fits.strategy.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
