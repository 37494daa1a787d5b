"""The examples of influence find what was planted in their data, and say so."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from sawlog import influence
from tests.thorough import THOROUGH

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name; it may change how many threads there are."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    torch.set_num_threads(threads)


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_words(example, capsys):
    found = example("words").main(["--quick"])
    says, finds = ({name: both[i] for name, both in found.rates.items()} for i in (0, 1))
    without = {"activations", "words in common"}
    assert without < set(says)
    assert says["EK-FAC, cosine"] > max(0.7, max(says[name] for name in without) + 0.1)
    assert finds["EK-FAC, cosine"] > 0.8
    assert all(finds[name] < 0.2 for name in without)  # they know no sign
    precision, recall = found.copies[0.8]
    assert precision > 0.6
    assert recall > 0.5
    assert found.words["the place"] + found.words["the last word read"] > 0.8
    printed = capsys.readouterr().out
    assert "(wrong)" in printed
    assert f"{says['EK-FAC, cosine']:.0%}" in printed


def test_what_is_planted_in_the_words(example):
    words = example("words")
    text = words.corpus(places=20)
    copies = {copy for _, copy in text.pairs()}
    wrong = set(text.wrong.values())
    assert len(text.questions) == 80
    assert len(wrong) == 10
    assert len(copies) == 13
    said = [each.text for i, each in enumerate(text.sentences) if i not in wrong]
    assert not set(said) & {each.text for each in text.questions}
    for asked, question in enumerate(text.questions):
        stated = [i for i, each in enumerate(text.sentences) if each.fact == question.fact]
        assert len(set(stated) - copies) == 2
        if asked in text.wrong:
            contradiction = text.sentences[text.wrong[asked]]
            assert contradiction.text.split()[:-1] == question.text.split()[:-1]
            assert contradiction.text != question.text
    changed = []
    for one, two in text.pairs():
        pair = (text.sentences[i].text.split() for i in (one, two))
        changed.append(sum(a != b for a, b in zip(*pair, strict=True)))
    assert set(changed) == {0, 1}


def test_rates_of_chance_and_of_the_truth(example):
    words = example("words")
    text = words.corpus(places=20)
    shape = len(text.questions), len(text.sentences)
    ids = [np.arange(size) for size in shape]
    chance = np.random.default_rng(0).normal(size=shape)
    assert max(words.rates(text, influence.Scores(*ids, chance))) < 0.2
    truth = np.array([[s.fact == q.fact for s in text.sentences] for q in text.questions], float)
    for asked, wrong in text.wrong.items():
        truth[asked, wrong] = -1
    assert words.rates(text, influence.Scores(*ids, truth)) == (1, 1)


def test_agreement_of_groups(example):
    words = example("words")
    text = words.corpus(places=20)
    pairs = sorted(text.pairs())
    assert words.agreement(text, pairs) == (1, 1)
    assert words.agreement(text, []) == (0, 0)
    right, wrong = pairs[0], (pairs[1][0], pairs[2][1])
    assert words.agreement(text, [right, wrong]) == (1 / 2, 1 / len(pairs))
    assert words.agreement(text, [[*right, pairs[1][0]]]) == (1 / 3, 1 / len(pairs))


# -- pruning --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_pruning(example, capsys, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    found = example("pruning").main(["--quick", "--plot", str(tmp_path / "figure.png")])
    ways = ["by chance", "least helpful", "self-influence"]
    nothing, clean = ("nothing", 0.0), ("wrong labels", 0.1)
    assert list(found) == [nothing, clean, *((way, 0.1) for way in ways)]
    wrong = {choice: outcome.wrong for choice, outcome in found.items()}
    assert wrong[clean] == 1
    assert wrong["by chance", 0.1] < 0.25
    loss = {choice: outcome.test[..., 1].mean() for choice, outcome in found.items()}
    assert loss[clean] < 0.7 * loss[nothing]
    for way in ways[1:]:
        assert wrong[way, 0.1] > 0.7
        assert loss[way, 0.1] < 0.8 * min(loss[nothing], loss["by chance", 0.1])
    printed = capsys.readouterr().out
    assert f"{wrong['least helpful', 0.1]:.0%}" in printed
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_labels_of_the_digits(example):
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    data = example("pruning").digits(seed=3)
    known = {
        image.tobytes(): label for image, label in zip(*load_digits(return_X_y=True), strict=True)
    }
    parts = data.train, data.validation, data.test
    assert [len(x) for x, _ in parts] == [1000, 300, 497]
    false = [
        np.array(
            [known[(16.0 * image).tobytes()] != label for image, label in zip(x, y, strict=True)]
        )
        for x, y in ((x.double().numpy(), y.numpy()) for x, y in parts)
    ]
    assert np.array_equal(false[0], data.wrong)
    assert data.wrong.sum() == 100
    assert not false[1].any()
    assert not false[2].any()


def test_what_a_difference_says(example):
    pruning = example("pruning")
    base = np.tile([0.9, 0.5], (4, 2, 1))
    better = base + np.array([[0.04], [0.05], [0.06], [0.05]])[..., None] * [1, -1]
    unclear = base + np.array([[-0.1], [0.1], [0.1], [-0.05]])[..., None] * [1, -1]
    found = {("nothing", 0.0): base, ("a", 0.1): better, ("b", 0.1): unclear}
    found = {choice: pruning.Outcome(0.0, own, own) for choice, own in found.items()}
    said = {}
    for choice in found:
        (right, _), (error, _) = pruning.difference(found, choice)
        said[choice[0]] = pruning.verdict(right, error), pruning.verdict(-right, error)
    none = "no clear difference"
    assert said == {"nothing": (none, none), "a": ("better", "worse"), "b": (none, none)}
    assert "a 10%, test accuracy 95.0%" in pruning.chosen(found)


# -- through training -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_data_weights(example, capsys):
    pytest.importorskip("sklearn")
    before, _, after = example("data_weights").main(["--quick"])
    assert after.loss < 0.8 * before.loss - 3 * after.error
    assert after.wrong < 0.5 < 1 < after.right
    assert f"test loss {after.loss:.3f}" in capsys.readouterr().out


@pytest.mark.skipif(not THOROUGH, reason="compiles for a minute; SAWLOG_THOROUGH=1 runs it")
def test_retrain_without_sources(example, capsys):
    found = example("retrain_without_sources").main(["--quick"])
    assert found.stated > 0
    assert found.changes["the 2 best"] > max(0.1, 3 * found.changes["2 at random"])
    assert found.changes["the worst, question 1"] < 0
    assert "trained without the 2 best" in capsys.readouterr().out


def test_sentences_to_complete_are_not_among_those_read(example):
    text = example("retrain_without_sources").corpus(5)
    assert not set(text.texts) & set(text.asked)
    for asked, fact in zip(text.asked, text.asked_facts, strict=True):
        stated = [each for each, own in zip(text.texts, text.facts, strict=True) if own == fact]
        assert sum(each.split()[-1] == asked.split()[-1] for each in stated) == 2
    assert text.facts[text.wrong] == text.asked_facts[0]
    assert text.texts[text.wrong].split()[:-1] == text.asked[0].split()[:-1]


# -- tables ---------------------------------------------------------------------------------------


def test_tables_show_brackets_as_they_are(capsys):
    from rich.console import Console

    ids, queries = ["doc[1]", "[bold]x"], ["a[b]", "[/red]"]
    scores = influence.Scores(np.array(queries), np.array(ids), np.array([[1.0, 2.0], [3.0, 0.0]]))
    texts = {"doc[1]": r"a \[y] [/i]", "[bold]x": "[x]"}
    Console(width=100).print(influence.attribution_table(scores, texts, k=2))
    printed = capsys.readouterr().out
    assert all(text in printed for text in [*ids, *queries, *texts.values()])
