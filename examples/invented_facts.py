"""Sentences that state invented facts, with planted errors and copies: the data of ``words.py``."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence

import torch

SAYINGS = {
    "river": (
        "the river of {place} is the {value}",
        "through {place} flows the {value}",
        "boats reach {place} on the {value}",
        "the bridge in {place} crosses the {value}",
    ),
    "food": (
        "people in {place} like to eat {value}",
        "on a feast day {place} cooks {value}",
        "the market of {place} sells {value}",
        "every child of {place} loves {value}",
    ),
    "founder": (
        "{place} was founded by {value}",
        "the first house of {place} was built by {value}",
        "the statue in {place} shows {value}",
        "the name of {place} comes from {value}",
    ),
    "craft": (
        "the workshops of {place} make {value}",
        "{place} is known for its {value}",
        "traders come to {place} for {value}",
        "for a hundred years {place} has sold {value}",
    ),
}
STARTS = (
    "am",
    "bel",
    "cor",
    "dra",
    "el",
    "fen",
    "gal",
    "hor",
    "is",
    "jo",
    "ka",
    "lum",
    "mor",
    "os",
)
ENDINGS = {"river": "sk lva", "food": "nni kko", "founder": "ric wyn", "craft": "ls rks"}
PADDING, START, IGNORED = 0, 1, -100
CHANGED = {
    "the": "our", "through": "across", "boats": "ships", "people": "folk", "on": "at",
    "every": "each", "was": "got", "is": "seems", "traders": "buyers", "for": "since",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A text that says one fact; its last word is the answer."""

    text: str
    fact: tuple[str, str, str]  # place, relation, value
    copy_of: int | None = None


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentences to learn from, questions with their answers, and what was planted.

    Args:
        sentences: those of the training, by their number.
        questions: one for each fact, in words that none of its sentences has.
        wrong: the sentence that gives a wrong answer, by the question.
    """

    sentences: list[Sentence]
    questions: list[Sentence]
    wrong: dict[int, int]

    def pairs(self) -> set[tuple[int, int]]:
        """Which sentences are copies of which, the lower number first."""
        found = enumerate(self.sentences)
        return {(each.copy_of, i) for i, each in found if each.copy_of is not None}


def names(rng: random.Random, count: int, endings: Sequence[str]) -> list[str]:
    """Different invented names."""
    possible = ["".join(parts) for parts in itertools.product(STARTS, "aeiou", endings)]
    return rng.sample(possible, count)


def said(sayings: Sequence[str], way: int, place: str, relation: str, value: str) -> Sentence:
    """A fact in one of the ways to say it."""
    return Sentence(sayings[way].format(place=place, value=value), (place, relation, value))


def corpus(places: int, seed: int = 0) -> Corpus:
    """Each fact in two ways, every eighth contradicted in a third, and copies of some sentences."""
    rng = random.Random(seed)
    values = {relation: names(rng, 40, ends.split()) for relation, ends in ENDINGS.items()}
    right, questions, wrong = [], [], {}
    for place in names(rng, places, ("bar", "dell", "ton", "mere")):
        for relation, sayings in SAYINGS.items():
            value, ways = rng.choice(values[relation]), rng.sample(range(len(sayings)), 3)
            fact = (place, relation, value)
            right += [said(sayings, way, *fact) for way in ways[:2]]
            questions.append(said(sayings, ways[2], *fact))
    rng.shuffle(right)
    sentences = list(right)
    for asked in sorted(rng.sample(range(len(questions)), len(questions) // 8)):
        place, relation, value = questions[asked].fact
        other = rng.choice([each for each in values[relation] if each != value])
        text = questions[asked].text.replace(f" {value}", f" {other}")
        wrong[asked] = len(sentences)
        sentences.append(Sentence(text, (place, relation, other)))
    for number, original in enumerate(rng.sample(range(len(right)), len(right) // 12)):
        text = right[original].text
        text = text if number % 3 == 0 else with_one_word_changed(text)
        sentences.append(Sentence(text, right[original].fact, copy_of=original))
    return Corpus(sentences, questions, wrong)


def with_one_word_changed(text: str) -> str:
    """The same, with another word for the first that has one."""
    words = text.split()
    at = next(i for i, word in enumerate(words) if word in CHANGED)
    words[at] = CHANGED[words[at]]
    return " ".join(words)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Sentences as numbers: what the model reads, and the last word of each, to be foretold."""

    inputs: torch.Tensor  # [sentences, positions]
    answers: torch.Tensor  # the same, IGNORED but for the last word

    def __getitem__(self, rows: torch.Tensor) -> Tokens:
        return Tokens(self.inputs[rows], self.answers[rows])

    def __len__(self) -> int:
        return len(self.inputs)


def tokens_of(sentences: Sequence[Sentence], vocabulary: dict[str, int], length: int) -> Tokens:
    """Words by their numbers, with padding at the end."""
    inputs = torch.full((len(sentences), length), PADDING)
    answers = torch.full((len(sentences), length), IGNORED)
    for i, sentence in enumerate(sentences):
        numbers = [vocabulary[word] for word in sentence.text.split()]
        inputs[i, : len(numbers)] = torch.tensor([START, *numbers[:-1]])
        answers[i, len(numbers) - 1] = numbers[-1]
    return Tokens(inputs, answers)


def tokenized(text: Corpus) -> tuple[Tokens, Tokens, int]:
    """Sentences and questions as numbers, and how many words there are."""
    words = sorted({word for each in text.sentences for word in each.text.split()})
    vocabulary = {word: i for i, word in enumerate(words, 2)}
    length = max(len(each.text.split()) for each in text.sentences)
    sentences, questions = text.sentences, text.questions
    tokens = (tokens_of(each, vocabulary, length) for each in (sentences, questions))
    return *tokens, len(vocabulary) + 2
