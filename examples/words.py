"""A small language model and its sentences: which of them made it answer so, and with which words?

    python examples/words.py

A one-layer GPT learns invented facts from about 440 generated sentences: two that say each fact,
some that are wrong, and some that are copies, with one word changed or none. It is then asked for
each fact in a way that none of the right sentences has. Shown are the sentences that helped most
and least with some of the answers, and their words; how often the most helpful one has the
right answer, and the least helpful one a wrong one, by several methods; what a model answers that
is trained without the most or least helpful sentences; and groups of near-duplicates. Takes about
20 s on one core. ``--quick`` has fewer sentences and does not train again.

A GPT of transformers does as well: ``run.watch(model, types=[nn.Linear, nn.Embedding, Conv1D])``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from invented_facts import (
    IGNORED,
    Corpus,
    Sentence,
    Tokens,
    corpus,
    tokenized,
)
from rich.console import Console
from rich.table import Table
from torch import nn

import sawlog
from sawlog import influence

PLACES, STEPS, SOME = 48, 400, 32
QUICK_PLACES, QUICK_STEPS = 40, 160


# -- the model ------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention to earlier words, and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder of one layer."""

    def __init__(self, words: int, length: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.block, self.norm = Block(width, heads), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(inputs.shape[1]).expand(inputs.shape)  # those of each sentence
        return self.head(self.norm(self.block(self.words(inputs) + self.positions(positions))))


def loss_of(model: nn.Module, batch: Tokens) -> torch.Tensor:
    """Of the last word of each sentence."""
    logits = model(batch.inputs)
    return F.cross_entropy(logits.flatten(0, 1), batch.answers.flatten(), ignore_index=IGNORED)


def train(data: Tokens, words: int, steps: int, seed: int = 0) -> GPT:
    """AdamW with a learning rate that goes up and down."""
    torch.manual_seed(seed)
    model = GPT(words, data.inputs.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, data[torch.randperm(len(data))[:64]]).backward()
        optimizer.step()
        schedule.step()
    return model


def answered(model: nn.Module, questions: Tokens) -> np.ndarray:
    """Which questions the model answers rightly."""
    asked = questions.answers != IGNORED
    with torch.no_grad():
        found = model(questions.inputs).argmax(-1)
    return (found[asked] == questions.answers[asked]).numpy()


# -- what made it answer so -----------------------------------------------------------------------


def logged(model: nn.Module, data: Tokens, name: str, folder: Path) -> sawlog.torch.Run:
    """A run with the gradient of every sentence, and both of its factors, in rank 32."""
    run = sawlog.init(project=name, root=folder)
    run.setup(log=["forward", "backward", "grad"], statistic="kfac", compress=32)
    run.watch(model, types=[nn.Linear, nn.Embedding], quiet=True)
    for ids in torch.arange(len(data)).split(64):
        with run(data_id=ids):
            run.backward(loss_of(model, data[ids]))
    run.finalize()
    return run


def words_in_common(text: Corpus) -> influence.Scores:
    """A baseline without a model: the rare words that question and sentence share."""
    spoken = [set(each.text.split()) for each in text.sentences]
    count = Counter(itertools.chain(*spoken))
    rare = {word: np.log(len(spoken) / count[word]) for word in count}
    size = [sum(rare[word] ** 2 for word in own) ** 0.5 for own in spoken]
    values = [
        [
            sum(rare[word] ** 2 for word in own.intersection(asked.text.split())) / length
            for own, length in zip(spoken, size, strict=True)
        ]
        for asked in text.questions
    ]
    return influence.Scores(np.arange(len(values)), np.arange(len(spoken)), np.array(values))


def by_all_methods(
    text: Corpus, run: sawlog.torch.Run, asked: sawlog.torch.Run
) -> dict[str, influence.Scores]:
    """Scores of all sentences for all questions."""
    return {
        "EK-FAC, cosine": influence.influence_functions(
            run.store_path, asked.store_path, mode="cosine"
        ),
        "K-FAC, cosine": influence.attribute(
            run.store_path, asked.store_path, curvature="kfac", mode="cosine"
        ),
        "EK-FAC": influence.influence_functions(run.store_path, asked.store_path),
        "gradient cosine": influence.gradient_cosine(run.store_path, asked.store_path),
        "gradient dot product": influence.attribute(
            run.store_path, asked.store_path, curvature="identity"
        ),
        "activations": influence.activation_similarity(
            run.store_path, asked.store_path, "forward/head", pool="mean"
        ),
        "words in common": words_in_common(text),
    }


def rates(text: Corpus, scores: influence.Scores) -> tuple[float, float]:
    """How often the most helpful sentence says the fact, and the least helpful is the wrong one."""
    best, least = first(scores), first(scores, "negative")
    says = [text.sentences[i].fact == q.fact for i, q in zip(best, text.questions, strict=True)]
    finds = [least[asked] == wrong for asked, wrong in text.wrong.items()]
    return float(np.mean(says)), float(np.mean(finds))


def first(scores: influence.Scores, sign: str = "positive") -> np.ndarray:
    """The most or least helpful sentence of each question."""
    return scores.top(1, sign).ids[:, 0]


def shares(text: Corpus, tokens: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """Which words of the most helpful sentence of a question have its score, as medians.

    ``tokens`` has the scores of all questions for ``np.unique(best)``, one of them a question.
    """
    known = np.unique(best)
    found: dict[str, list[float]] = {"the place": [], "the last word read": [], "all others": []}
    for own, i in zip(tokens, best, strict=True):
        words = text.sentences[i].text.split()
        scores = own[np.searchsorted(known, i)]
        place, last = scores[1 + words.index(text.sentences[i].fact[0])], scores[len(words) - 1]
        for name, part in zip(found, (place, last, scores.sum() - place - last), strict=True):
            found[name].append(part / scores.sum())
    return {name: float(np.median(parts)) for name, parts in found.items()}


def agreement(text: Corpus, groups: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Precision and recall of groups, by pairs, as for the copies that were planted."""
    found = {pair for group in groups for pair in itertools.combinations(sorted(group), 2)}
    planted = text.pairs()
    return len(found & planted) / max(1, len(found)), len(found & planted) / len(planted)


# -- shown ----------------------------------------------------------------------------------------


def question(sentence: Sentence) -> str:
    """A question with its right answer."""
    *words, answer = sentence.text.split()
    return f"{' '.join(words)} ... {answer}"


def show_sentences(
    console: Console, text: Corpus, scores: influence.Scores, asked: Sequence[int]
) -> None:
    """The most and least helpful sentences of some questions."""
    planted = set(text.wrong.values())

    def shown(i: int) -> str:
        return text.sentences[i].text + (" (wrong)" if i in planted else "")

    few = dataclasses.replace(
        scores, queries=scores.queries[list(asked)], values=scores.values[list(asked)]
    )
    questions = {i: question(text.questions[i]) for i in asked}
    console.print(influence.attribution_table(few, shown, questions, k=2))


def show_methods(
    console: Console, text: Corpus, found: dict[str, influence.Scores]
) -> dict[str, tuple[float, float]]:
    """How good each method is, by what was planted: the two rates of each."""
    table = Table(title=f"{len(text.questions)} questions, {len(text.wrong)} of them contradicted")
    table.add_column("method")
    table.add_column("the most helpful sentence\nsays the fact", justify="right")
    table.add_column("the least helpful one\nis the wrong one", justify="right")
    measured = {name: rates(text, scores) for name, scores in found.items()}
    for name, both in measured.items():
        table.add_row(name, *(f"{rate:.0%}" for rate in both))
    console.print(table)
    return measured


def show_words(
    console: Console,
    text: Corpus,
    runs: tuple[sawlog.torch.Run, sawlog.torch.Run],
    scores: influence.Scores,
    asked: Sequence[int],
) -> dict[str, float]:
    """The words of the most and least helpful sentence of some questions; shares of all."""
    train, queries = runs[0].store_path, runs[1].store_path
    best, least = first(scores), first(scores, "negative")
    console.print("\nWhich words it was; ^ is the start, the last word read is next to the answer:")
    for i in asked:
        ids = [int(best[i]), int(least[i])]
        values = influence.token_scores(train, queries, ids)[i]
        read = {j: ["^ ", *(f"{w} " for w in text.sentences[j].text.split()[:-1])] for j in ids}
        console.print(question(text.questions[i]))
        console.print(influence.token_table(values, read, ids, queries=[i]))
    found = shares(text, influence.token_scores(train, queries, np.unique(best)), best)
    listed = ", ".join(f"{name} {share:.0%}" for name, share in found.items())
    console.print(f"Of the score of the most helpful sentence of a question: {listed} (medians).\n")
    return found


def left_out(
    text: Corpus, found: dict[str, influence.Scores], right: np.ndarray, some: np.ndarray
) -> dict[str, np.ndarray]:
    """Sentences to train without, by why; ``some`` are questions that were answered rightly."""
    scores, common = found["EK-FAC, cosine"], found["words in common"]
    best = np.unique(scores.top(2).ids[some])
    chance = np.random.default_rng(0).permutation(len(text.sentences))
    return {
        "least helpful of wrong answers": np.unique(first(scores, "negative")[~right]),
        f"most helpful 2 of {len(some)} right ones": best,
        "most words in common with these": np.unique(common.top(2).ids[some]),
        "by chance": chance[: len(best)],
    }


def show_retrained(
    console: Console,
    text: Corpus,
    found: dict[str, influence.Scores],
    right: np.ndarray,
    retrained: Callable[[np.ndarray], np.ndarray],
) -> None:
    """What a model answers that never saw some sentences."""
    contradicted = np.isin(np.arange(len(right)), list(text.wrong))
    some = np.random.default_rng(0).permutation(np.flatnonzero(right & ~contradicted))[:SOME]
    table = Table(title="\nTrained again without some sentences: right answers")
    table.add_column("left out")
    for name in ("sentences", "all", "contradicted", f"those {len(some)}"):
        table.add_column(name, justify="right")
    without = left_out(text, found, right, some)
    answers = {"nothing": right, **{name: retrained(out) for name, out in without.items()}}
    for name, own in answers.items():
        cells = [f"{own[which].mean():.0%}" for which in (slice(None), contradicted, some)]
        table.add_row(name, str(len(without.get(name, ()))), *cells)
    console.print(table)
    suspects = without["least helpful of wrong answers"]
    planted = np.isin(suspects, list(text.wrong.values())).sum()
    console.print(
        f"Of the {len(text.wrong)} sentences that are wrong, {planted} are among the "
        f"{len(suspects)} least helpful ones of wrong answers."
    )


def show_copies(
    console: Console, text: Corpus, run: sawlog.torch.Run
) -> dict[float, tuple[float, float]]:
    """Near-duplicates, by the cosine in the measure of EK-FAC; precision and recall of each."""
    measured = {}
    console.print(f"\nNear-duplicates; {len(text.pairs())} sentences were planted as copies.")
    for threshold in (0.99, 0.9, 0.8, 0.7):
        groups = influence.near_duplicates(run.store_path, threshold=threshold, curvature="ekfac")
        measured[threshold] = precision, recall = agreement(text, groups)
        console.print(
            f"  cosine from {threshold}: {len(groups):>2} groups, precision {precision:.0%}, "
            f"recall {recall:.0%} of the pairs"
        )
    for group in groups[:5]:
        planted = set(itertools.combinations(sorted(group), 2)) <= text.pairs()
        texts = "\n    ".join(text.sentences[i].text for i in group)
        console.print(f"  {'planted' if planted else 'not planted'}\n    {texts}")
    return measured


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was measured.

    Args:
        rates: how often each method finds what the fact says, and what contradicts it.
        words: the shares of words in the score of the most helpful sentence.
        copies: precision and recall of near-duplicates, by the threshold.
    """

    rates: dict[str, tuple[float, float]]
    words: dict[str, float]
    copies: dict[float, tuple[float, float]]


def main(arguments: Sequence[str] | None = None) -> Figures:
    """Train, ask, attribute, train again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sentences, no second training")
    quick = parser.parse_args(arguments).quick
    torch.set_num_threads(1)  # the matrices are small
    console = Console()
    text = corpus(QUICK_PLACES if quick else PLACES)
    sentences, questions, words = tokenized(text)
    steps = QUICK_STEPS if quick else STEPS
    model = train(sentences, words, steps)
    right = answered(model, questions)
    console.print(
        f"{len(sentences)} sentences, {len(text.wrong)} of them wrong, {words} words. "
        f"Of {len(questions)} questions the model answers {right.mean():.0%} rightly."
    )

    def retrained(out: np.ndarray) -> np.ndarray:
        kept = torch.from_numpy(np.setdiff1d(np.arange(len(sentences)), out))
        return answered(train(sentences[kept], words, steps), questions)

    with tempfile.TemporaryDirectory() as folder:
        run = logged(model, sentences, "sentences", Path(folder))
        asked = logged(model, questions, "questions", Path(folder))
        found = by_all_methods(text, run, asked)
        scores = found["EK-FAC, cosine"]
        others = [i for i in np.flatnonzero(right).tolist() if i not in text.wrong]
        shown = [*others[:2], *sorted(text.wrong)[:2]]
        show_sentences(console, text, scores, shown)
        shares_of_words = show_words(console, text, (run, asked), scores, shown[::2])
        measured = show_methods(console, text, found)
        if not quick:
            show_retrained(console, text, found, right, retrained)
        return Figures(measured, shares_of_words, show_copies(console, text, run))


if __name__ == "__main__":
    main()
