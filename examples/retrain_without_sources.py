"""Which sentences does a small language model owe a completion to? Find them, then train without.

    python examples/retrain_without_sources.py    # half a minute on one core

A one-layer transformer in JAX learns from sentences about invented people. It is asked to complete
sentences that it never read: each fact was stated in two other ways, among hundreds of others. For
one person, a third sentence states something wrong. Training is differentiated by a weight on each
sentence, averaged over runs on random halves. Shown are the sentences with the highest and lowest
scores for each completion. Then the model is trained without the best ones, without the worst one,
and without as many sentences chosen at random. ``--quick`` asks fewer questions.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sawlog import influence

SAYINGS = {
    "town": ("{who} lives in {what}", "the home of {who} is {what}", "{who} was seen in {what}"),
    "job": ("{who} works as {what}", "the job of {who} is {what}", "{who} earns money as {what}"),
}
VALUES = {
    "town": ["arosa", "bremo", "cintra", "dolva", "erkan", "fulda"],
    "job": ["baker", "clerk", "diver", "farmer", "guard", "judge"],
}
NAMES = ["".join(parts) for parts in itertools.product("abdgklmn", "aeo", ["ri", "lu"])]
PEOPLE, WIDTH, HEADS = 36, 32, 4
# With a small eps, Adam divides the tiny gradients of rare words by their own size: every run is
# rough, and its derivatives are huge.
OPTIMIZER = optax.adam(1e-2, eps=1e-3)
BATCH, EPOCHS = 29, 20  # a run on a half takes 40 steps


# -- the sentences --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentences to learn from, and sentences to complete.

    Args:
        texts: The training sentences; the last word of each is learned.
        facts: The fact that each sentence states: person, kind.
        asked: Sentences to complete; none of them is in ``texts``.
        asked_facts: The facts that they ask for.
        wrong: The sentence that contradicts the fact of the first question.
    """

    texts: list[str]
    facts: list[tuple[str, str]]
    asked: list[str]
    asked_facts: list[tuple[str, str]]
    wrong: int


def corpus(questions: int, seed: int = 0) -> Corpus:
    """State each fact in two ways; ask for some of them in a third."""
    random = np.random.default_rng(seed)
    found, asked = [], []
    for who in random.permutation(NAMES)[:PEOPLE].tolist():
        for kind, sayings in SAYINGS.items():
            what = str(random.choice(VALUES[kind]))
            ways = random.permutation(len(sayings))
            texts = [sayings[way].format(who=who, what=what) for way in ways]
            found += [(text, (who, kind)) for text in texts[:2]]
            asked.append((texts[2], (who, kind)))
    chosen = [asked[at] for at in random.permutation(len(asked))[:questions]]
    *start, right = chosen[0][0].split()
    other = next(value for value in VALUES[chosen[0][1][1]] if value != right)
    found.append((" ".join([*start, other]), chosen[0][1]))
    order = random.permutation(len(found))
    texts, facts = zip(*(found[at] for at in order), strict=True)
    wrong = int(np.flatnonzero(order == len(found) - 1)[0])
    return Corpus(list(texts), list(facts), *map(list, zip(*chosen, strict=True)), wrong)


def tokenized(texts: Sequence[str], words: Sequence[str], length: int) -> Any:
    """Return the words before the last one, from the right, and the last word: ``[n, t], [n]``."""
    number = {word: at for at, word in enumerate(words, 1)}
    rows = [[number[word] for word in text.split()] for text in texts]
    inputs = np.array([[0] * (length - len(row)) + row[:-1] for row in rows], np.int32)
    return inputs, np.array([row[-1] for row in rows], np.int32)


# -- the model ------------------------------------------------------------------------------------


def init_of(words: int, length: int) -> Any:
    """Return ``init(key)`` for a transformer of one layer."""
    shapes = {
        "words": (words, WIDTH),
        "places": (length, WIDTH),
        "qkv": (WIDTH, 3 * WIDTH),
        "mixed": (WIDTH, WIDTH),
        "up": (WIDTH, 2 * WIDTH),
        "down": (2 * WIDTH, WIDTH),
        "head": (WIDTH, words),
    }

    def init(key: Any) -> dict[str, Any]:
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.normal(own, shape) / np.sqrt(WIDTH)
            for own, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    return init


def normed(x: Any) -> Any:
    """Normalize over the last dimension."""
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def loss(params: Any, batch: Any) -> Any:
    """Return the loss of the last word of each sentence, ``[n]``."""
    inputs, answers = batch
    x = params["words"][inputs] + params["places"]
    q, k, v = jnp.split((normed(x) @ params["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, -1)
    scores = jnp.einsum("nhd,nthd->nht", q[:, -1], k) / np.sqrt(WIDTH / HEADS)
    scores = jnp.where((inputs > 0)[:, None], scores, -1e9)  # not to empty places
    attended = jnp.einsum("nht,nthd->nhd", jax.nn.softmax(scores), v)
    x = x[:, -1] + attended.reshape(len(x), -1) @ params["mixed"]
    x = x + jax.nn.gelu(normed(x) @ params["up"]) @ params["down"]
    return optax.softmax_cross_entropy_with_integer_labels(normed(x) @ params["head"], answers)


# -- training again -------------------------------------------------------------------------------


def retraining(data: Any, asked: Any, init: Any, models: int) -> Callable[..., np.ndarray]:
    """Return a function that trains without some sentences, and returns losses ``[models, q]``."""
    data, asked = jax.tree.map(jnp.asarray, (data, asked))

    count = len(data[0]) // BATCH * BATCH

    def one(key: Any, weights: Any) -> Any:
        start, shuffle = jax.random.split(key)
        params = init(start)

        def epoch(own: Any) -> Any:
            return jax.random.permutation(own, len(data[0]))[:count].reshape(-1, BATCH)

        order = jax.vmap(epoch)(jax.random.split(shuffle, EPOCHS)).reshape(-1, BATCH)

        def step(state: Any, rows: Any) -> tuple[Any, None]:
            params, memory = state
            batch, own = jax.tree.map(lambda a: a[rows], data), weights[rows]
            grads = jax.grad(lambda p: (own * loss(p, batch)).sum() / own.sum())(params)
            updates, memory = OPTIMIZER.update(grads, memory, params)
            return (optax.apply_updates(params, updates), memory), None

        params = jax.lax.scan(step, (params, OPTIMIZER.init(params)), order)[0][0]
        return loss(params, asked)

    together = jax.jit(jax.vmap(one, (0, None)))
    keys = jax.random.split(jax.random.key(7), models)

    def without(left_out: np.ndarray) -> np.ndarray:
        weights = np.ones(len(data[0]), np.float32)
        weights[left_out] = 0
        return np.asarray(together(keys, weights))

    return without


@dataclasses.dataclass(frozen=True)
class Result:
    """What was found.

    Args:
        stated: For how many questions the best sentence states the fact in question.
        questions: The number of questions.
        wrong_found: Whether the sentence with the lowest score is the wrong one, for question 0.
        changes: By what was left out, the mean change of the loss of the questions.
    """

    stated: int
    questions: int
    wrong_found: bool
    changes: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> Result:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer questions, runs and models")
    quick = parser.parse_args(arguments).quick
    questions, runs, models = (2, 4, 4) if quick else (4, 8, 8)
    text = corpus(questions)
    words = sorted({word for each in text.texts for word in each.split()})
    length = max(len(each.split()) for each in text.texts)
    data, asked = (tokenized(each, words, length) for each in (text.texts, text.asked))
    init = init_of(len(words) + 1, length - 1)

    scores = influence.through_training(
        data,
        asked,
        init=init,
        loss=loss,
        optimizer=OPTIMIZER,
        batch_size=BATCH,
        epochs=EPOCHS,
        runs=runs,
        check=False,
    )
    best, worst = scores.top(2).ids, scores.top(1, "negative").ids[:, 0]
    for at, question in enumerate(text.asked):
        *start, answer = question.split()
        print(f"{' '.join(start)} ... {answer}")
        for name, row in [("best", best[at, 0]), ("best", best[at, 1]), ("worst", worst[at])]:
            error = scores.standard_errors[at, row]
            print(f"  {name:5s} {scores.values[at, row]:+7.1f} +- {error:4.1f}  {text.texts[row]}")

    without = retraining(data, asked, init, models)
    before, random, changes = without(np.array([], int)), np.random.default_rng(1), {}

    def changed(at: int, left_out: np.ndarray) -> float:
        return float(without(left_out)[:, at].mean() - before[:, at].mean())

    changes["the 2 best"] = np.mean([changed(at, best[at]) for at in range(questions)])
    others = [random.permutation(len(text.texts))[:2] for _ in range(questions)]
    changes["2 at random"] = np.mean([changed(at, others[at]) for at in range(questions)])
    changes["the worst, question 1"] = changed(0, worst[:1])
    for name, change in changes.items():
        print(f"trained without {name}: the loss of the completion changes by {change:+.2f}")
    stated = sum(text.facts[best[at, 0]] == fact for at, fact in enumerate(text.asked_facts))
    print(f"The best sentence states the fact for {stated} of {questions} completions.")
    changes = {name: float(change) for name, change in changes.items()}
    return Result(stated, questions, bool(worst[0] == text.wrong), changes)


if __name__ == "__main__":
    main()
