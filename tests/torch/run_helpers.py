"""A run that watches the model of a program, and one batch of it."""

import numpy as np

import sawlog


def start(tmp_path, program, watch=None, **options):
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(options)
    return run, run.watch(program.model, quiet=True, **(watch or {}))


def go(run, program, ids=None, batch=None, way="loss.backward", **with_options):
    batch = program.batch if batch is None else batch
    ids = np.arange(len(batch[0])) if ids is None else ids
    with run(data_id=ids, **with_options):
        loss = program.of(batch)
        loss.backward() if way == "loss.backward" else run.backward(loss)
