"""Runs for the tests of pages: seeds with curves, a failed one, a capture run with texts."""

from pathlib import Path

import numpy as np

import sawlog.store

HOSTILE = '<img src=x onerror="window.pwned=1"></script><script>window.pwned=1</script>'
ESCAPES = "\x1b[31mred\u202egnp.exe %{y} {{7*7}} &lt;b&gt;"


def make_seeds(root: Path, seeds: int = 3, steps: int = 200) -> Path:
    """Stores as a logger leaves them, one for each seed, and one that fails."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        meta = {"key": [0, seed], "config": {"lr": 0.1 * (1 + seed), "model": {"width": 32}}}
        with sawlog.store.create(root / f"seed-{seed}", meta=meta, interval=None) as writer:
            at = np.arange(steps)
            loss = 2.0 * np.exp(-at / 50) + 0.05 * rng.standard_normal(steps)
            writer.extend({"loss": loss}, step=at, epoch=at // 20)
            writer.extend({"accuracy": 1 - np.exp(-at / 40)}, step=at)
            few = at[:: max(1, steps // 8)]
            writer.extend({"weights": rng.standard_normal((len(few), 64)) * 0.1}, step=few)
            pictures = rng.random((len(few), 12, 12)).astype(np.float32)
            writer.extend({"attention": pictures}, step=few)
    return root


def make_failed(root: Path, steps: int = 60) -> Path:
    """A run whose loss becomes NaN at step 40, closed after an error."""
    path = root / "diverged"
    writer = sawlog.store.create(path, meta={"config": {"lr": 9.0}}, interval=None)
    for step in range(steps):
        writer.log({"loss": float("nan") if step >= 40 else 1.0 + step}, step=step)
    writer.fail()
    writer.close()
    return path


def make_hostile(root: Path) -> Path:
    """A store with names, settings and axes that try to be markup."""
    meta = {"config": {HOSTILE: HOSTILE, "note": ESCAPES}}
    path = root / "<b>bold<b>"
    with sawlog.store.create(path, meta=meta, interval=None) as writer:
        writer.extend({HOSTILE: np.arange(5.0)}, **{"<i>step": np.arange(5)})
        writer.extend({ESCAPES: np.ones((5, 3))}, step=np.arange(5))
    return path


LONG = "long-" + "x" * 300  # without a place to break it
WORDS = ["river", "stone", "bird", "light", "<script>", "&amp;", "winter", "bread"]


def make_texts(count: int) -> list[dict]:
    """Texts with a topic, a source to group by, and a label that is sometimes wrong."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        topic = int(rng.integers(2))
        words = [WORDS[topic * 4 + int(w)] for w in rng.integers(0, 4, 6)]
        text = " ".join(words) if i % 10 else "river stone river stone river stone"
        source = ["web", "books", HOSTILE][i % 3]
        made.append({"text": text, "label": topic if i % 10 else 0, "source": source, "i": i})
    made[1][LONG] = LONG
    return made


def make_capture(root: Path, examples: int = 60, queries: int = 3) -> tuple[Path, Path]:
    """A capture run of a small model over texts, with scores saved, and a run of queries."""
    import torch

    torch.manual_seed(0)
    texts = make_texts(examples + queries)
    words = sorted(set(WORDS))
    x = torch.tensor(
        [[each["text"].split().count(w) for w in words] for each in texts], dtype=torch.float32
    )
    y = torch.tensor([each["label"] for each in texts])
    model = torch.nn.Sequential(torch.nn.Linear(len(words), 6), torch.nn.Tanh())
    model.append(torch.nn.Linear(6, 2))

    def logged(project: str, ids: torch.Tensor, named: list):
        run = sawlog.init(project=project, root=root, config={"statistic": "kfac"})
        run.watch(model, quiet=True)
        with run(data_id=named):
            run.backward(torch.nn.functional.cross_entropy(model(x[ids]), y[ids]))
        return run

    train = logged("train", torch.arange(examples), list(range(examples)))
    for step in range(20):
        train.log({"train/loss": 1.0 / (1 + step)}, step=step)
    train.describe(texts[:examples])
    train.finalize()
    named = [f"q{i}" if i else HOSTILE for i in range(queries)]
    asked = logged("asked", torch.arange(examples, examples + queries), named)
    asked.describe(dict(zip(named, texts[examples:], strict=True)))
    asked.finalize()
    scores = sawlog.influence.attribute(
        train.store_path, asked.store_path, curvature="ekfac", per_layer=True
    )
    scores.save(train.path / "scores" / "asked")
    return train.path, asked.path
