"""Examples on small sizes: each runs, and finds what its data hold."""

import importlib
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import sawlog
from tests.thorough import THOROUGH

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.mark.thorough
def test_ppo_has_a_run_for_each_seed(example, tmp_path):
    example("ppo_seeds").main(["--seeds", "2", "--updates", "2", "--folder", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0", "seed-1"]
    runs = [sawlog.load(path) for path in sorted(tmp_path.iterdir())]
    for logs in runs:
        assert logs["loss/policy"].shape == (2 * 4 * 4,)
        assert set(logs.steps["update"]["loss/policy"].tolist()) == {0, 1}
        lengths = logs["episode/return"][logs.mask["episode/return"]]
        assert len(lengths) > 5
        assert (lengths >= 8).all()  # a pole does not fall faster
        assert lengths.sum() <= 2 * 64 * 8  # no step is counted twice
    assert not np.array_equal(runs[0]["grad_norm"], runs[1]["grad_norm"])


def test_the_flax_dashboard(example, tmp_path, capsys):
    example("flax_dashboard").main(["--steps", "12", "--folder", str(tmp_path / "runs")])
    logs = sawlog.load(tmp_path / "runs" / "seed-0")
    assert logs["logits"].shape == (12, 64, 3)
    assert logs["grad_norm/first"].shape == (12,)
    assert "shapes" in capsys.readouterr().out


@pytest.mark.thorough
def test_gradients_of_a_diffusion_model(example):
    module = example("diffusion_cotangents")
    found = module.main(["--steps", "60", "--samples", "8"])
    assert found["x"].shape == (module.LEVELS,)
    assert np.isfinite(found["x"]).all()
    assert (found["x"] > 0).all()
    assert np.nanmax(found["layer3"]) < 1


@pytest.mark.thorough
def test_wrong_digits_have_the_same_answer_in_both_frameworks(example):
    for package in ("torch", "sklearn"):
        pytest.importorskip(package)
    torch, jax = (
        example(name).main(["--epochs", "4"]) for name in ("wrong_digits", "wrong_digits_jax")
    )
    ours = dict(zip(jax.ids.tolist(), jax.values.tolist(), strict=True))
    theirs = np.array([ours[each] for each in torch.ids.tolist()])
    # Rounding differs, and so do units that are on for one framework and off for the other.
    assert np.mean(np.abs(theirs / torch.values - 1) < 0.02) > 0.97
    assert len(set(torch.ids[:150]) & set(jax.ids[:150])) >= 145


@pytest.mark.thorough
def test_the_sources_of_a_sentence(example, tmp_path, capsys):
    pytest.importorskip("torch")
    page = tmp_path / "page.html"
    sizes = ["--places", "12", "--steps", "120"]
    text, asked, scores = example("sentence_sources").main([*sizes, "--page", str(page)])
    fact = text.questions[asked].fact
    best = [each for each, _ in scores.top(2)[asked]]
    assert fact in [text.sentences[each].fact for each in best]
    printed = capsys.readouterr().out
    assert fact[0] in printed
    assert "same words" in printed
    assert '"tokens"' in page.read_text()


def test_a_trainer(example, tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sizes = ["--reviews", "160", "--epochs", "3"]
    folder, share = example("huggingface_trainer").main([*sizes, "--folder", str(tmp_path)])
    assert share > 0.3  # 8 % of all
    assert sawlog.load(folder / "training" / "metrics")["loss"].shape[0] == 24 // 5
    assert "least believable" in capsys.readouterr().out


@pytest.mark.thorough
def test_dropping_a_group(example):
    pytest.importorskip("sklearn")
    found = example("drop_a_group").main(["--quick"])
    assert found.predicted < 0
    assert found.measured < 0
    assert found.low < found.measured < found.high or abs(found.predicted / found.measured - 1) < 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path):
    if "torch" in path.read_text():
        pytest.importorskip("torch")
    assert len(NOTEBOOKS) == 2
    cells = json.loads(path.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) > 5
    if THOROUGH:
        executed_by_jupyter(path)
        return
    scope = {"__name__": "__main__"}
    for number, code in enumerate(codes):
        with redirect_stdout(io.StringIO()):
            run_cell(code, f"{path.name}, cell {number}", scope)


def run_cell(code: str, where: str, scope: dict) -> None:
    """Run a cell as a notebook does, and render what its last line returns."""
    import ast

    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), scope)
    if last is not None:
        shown = eval(compile(ast.Expression(last.value), where, "eval"), scope)
        html = getattr(shown, "_repr_html_", None)
        assert html is None or html().startswith("<")


def executed_by_jupyter(path: Path) -> None:
    """Run a notebook in a kernel of its own."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    client(nbformat.read(path, 4), timeout=300, kernel_name="python3").execute()
