"""One sentence of a small language model, and the sentences that it comes from.

    python examples/sentence_sources.py
    python examples/sentence_sources.py --question 12 --page sources.html

The model and its invented facts are those of words.py. It completes one sentence; shown are the
training sentences that helped most and least with the answer, the words in them that did it, what a
search for the same words (BM25) finds instead, and a page with all of it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from words import Corpus, Sentence, answered, corpus, logged, tokenized, train

from sawlog import influence
from sawlog.cli import main as sawlog_command


def looks(sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
    """What sentences look like on a page: their text, and what the model reads of it."""
    return [
        {
            "text": each.text,
            "tokens": ["^ ", *(f"{word} " for word in each.text.split()[:-1])],
            "relation": each.fact[1],
        }
        for each in sentences
    ]


def show(console: Console, text: Corpus, asked: int, scores: influence.Scores) -> None:
    """The most and least helpful sentences, and those with the same words."""
    words = influence.bm25([each.text for each in text.sentences], [text.questions[asked].text])
    table = Table(title=f'Where does the answer of "{text.questions[asked].text}" come from?')
    for column in ("", "score", "sentence", "says the fact"):
        table.add_column(column, justify="right" if column == "score" else "left")
    fact = text.questions[asked].fact
    listed = {
        "helped": scores.top(3)[asked],
        "spoke against it": scores.top(2, "negative")[asked],
        "same words": words.top(3)[0],
    }
    for name, pairs in listed.items():
        for each, score in pairs:
            sentence = text.sentences[each]
            says = "yes" if sentence.fact == fact else ""
            table.add_row(name, f"{score:+.3g}", sentence.text, says)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> tuple[Corpus, int, influence.Scores]:
    """Train, ask, attribute; return the corpus, the number of the question, and its scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=int, default=40, help="how many facts there are")
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--question", type=int, default=None, help="which sentence to complete")
    parser.add_argument("--page", type=Path, default=None, help="write a page about it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the matrices are small
    console = Console()
    text = corpus(options.places)
    sentences, questions, words = tokenized(text)
    model = train(sentences, words, options.steps)
    right = answered(model, questions)
    asked = options.question
    if asked is None:  # a fact that the model knows
        asked = int(np.flatnonzero(right)[0])
    console.print(f"{len(sentences)} sentences; {right.mean():.0%} of the questions are answered.")
    with tempfile.TemporaryDirectory() as folder:
        run = logged(model, sentences, "sentences", Path(folder))
        queries = logged(model, questions, "questions", Path(folder))
        run.describe(looks(text.sentences))
        queries.describe(looks(text.questions))
        scores = influence.attribute(run.store_path, queries.store_path, mode="cosine")
        show(console, text, asked, scores)
        best = [each for each, _ in scores.top(2)[asked]]
        values = influence.token_scores(run.store_path, queries.store_path, best)[asked]
        read = {i: looks([text.sentences[i]])[0]["tokens"] for i in best}
        console.print("The words of the most helpful ones, by their share of the score:")
        console.print(influence.token_table(values, read, best, queries=[asked]))
        if options.page is not None:
            chosen = ["--queries", str(queries.path), "--query", str(asked)]
            sawlog_command(["report", str(run.path), *chosen, "-o", str(options.page)])
    return text, asked, scores


if __name__ == "__main__":
    main()
