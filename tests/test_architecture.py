"""ARCHITECTURE.md: every file and folder that it names exists, and its walks are what runs."""

import contextlib
import re
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sawlog"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SPAN = re.compile(r"`([\w./-]+)`")
FILE = re.compile(r"[\w/]+/\w+\.py|^  _log\.py", re.MULTILINE)
NOT_INSTALLED_EVERYWHERE = {"sinks/_wandb.py", "sinks/_values.py"}


def paths_of(page):
    """The files and folders that a page names in its text, as in `` `jax/_core/` ``."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    spans = [span for span in SPAN.findall(text) if span.endswith(("/", ".py", ".js"))]
    return {span for span in spans if "/" in span}


def missing(paths):
    """Those that are not below the root, the package, or one of its parts."""
    parts = [SOURCE, *(folder for folder in SOURCE.iterdir() if folder.is_dir())]
    places = [ROOT, *parts]
    return {path for path in paths if not any((place / path).exists() for place in places)}


def walk(title, page=PAGE):
    """The files of each block of a walk."""
    section = page.split(f"## The walk of one {title}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [{name.strip() for name in FILE.findall(block)} for block in blocks]


@contextlib.contextmanager
def files_that_run():
    """Yield a set of the files of sawlog that have a function called in the block."""
    found, prefix = set(), f"{SOURCE}/"

    def call(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(prefix):
            found.add(name.removeprefix(prefix))

    threading.setprofile(call)
    sys.setprofile(call)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_what_the_page_names_exists():
    found = paths_of(PAGE)
    assert {"jax/_core/site.py", "torch/_layers/", "tests/jax/cases/"} <= found
    assert missing(found) == set()


def test_a_path_that_is_gone_is_found():
    assert missing(paths_of("In `jax/_core/gone.py` and `store/`.")) == {"jax/_core/gone.py"}


def words_of(glossary):
    """The words in the first column of the table."""
    cells = [row.split("|")[1] for row in glossary.splitlines() if row.startswith("| **")]
    return [word for cell in cells for word in re.findall(r"\*\*(.+?)\*\*", cell)]


def test_the_glossary_has_every_word_once():
    words = words_of(PAGE.split("## Glossary")[1].split("\n## ")[0])
    assert {"log site", "table", "row", "tape", "example layout"} <= set(words)
    assert len(set(words)) == len(words)
    assert words_of("| **a**, **b** | **c** |\n| **a** |") == ["a", "b", "a"]


def test_every_module_of_the_basement_is_in_the_layout():
    layout = PAGE.split("## Layout")[1].split("\n## ")[0]
    modules = {each.stem for each in SOURCE.glob("_*.py")} - {"__init__", "__main__"}
    assert {"_atomic", "_html", "_figures"} <= modules
    assert {name for name in modules if not re.search(rf"\b{name}\b", layout)} == set()


def test_every_folder_is_in_the_layout():
    layout = PAGE.split("## Layout")[1].split("\n## ")[0]
    folders = [each for each in SOURCE.rglob("*") if (each / "__init__.py").exists()]
    assert len(folders) > 40
    assert [
        str(each.relative_to(SOURCE)) for each in folders if f"{each.name}/" not in layout
    ] == []


def test_the_walk_of_one_log(tmp_path):
    jax = pytest.importorskip("jax")
    import sawlog
    from sawlog.loggers import Logger
    from sawlog.sinks import Async, StoreSink

    class Walked(Logger):
        """A logger whose sinks are those of trackers, around a store."""

        def open_run(self, name, about, exists):
            return StoreSink(tmp_path / name, exists=exists)

        def _sink_of(self, name, about):
            return Async(super()._sink_of(name, about))

    def train(key):
        def step(x, i):
            sawlog.log({"x": x}, step=i)
            return x + 1, None

        return jax.lax.scan(step, jax.random.uniform(key), jax.numpy.arange(3))[0]

    logger = Walked(on_error="fallback", fallback=tmp_path / "fallback", timeout=60)
    with files_that_run() as found, logger:
        run = jax.vmap(lambda key: logger.spool(train, logger.init(key))(key))
        jax.block_until_ready(jax.jit(run)(jax.vmap(jax.random.key)(jax.numpy.arange(2))))
    (named,) = walk("log")
    assert {"_log.py", "jax/_core/interpreter.py", "sinks/_store.py"} <= named
    assert missing(named) == set()
    assert named - found - NOT_INSTALLED_EVERYWHERE == set()


def test_the_walk_of_one_gradient(tmp_path):
    torch = pytest.importorskip("torch")
    import sawlog

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    run = sawlog.init(project="walk", root=tmp_path, config={"statistic": "kfac"})
    run.setup(statistic="kfac", dtype="int8")
    run.watch(model, quiet=True)
    with files_that_run() as found:
        with run(data_id=range(6)):
            torch.nn.functional.cross_entropy(model(x), y).backward()
        run.eval()
        with run(data_id=["query"]):
            torch.nn.functional.cross_entropy(model(x[:1]), y[:1]).backward()
        scores = run.influence.compute_influence_all(run.get_log(), top_k=2)
        assert len(scores["query"]) == 2
    named, _ = walk("gradient")
    assert {"capture/_run_core.py", "influence/_scores.py"} <= named
    assert missing(named) == set()
    assert named - found == set()


def test_the_walk_of_one_gradient_in_jax(tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    import sawlog

    def loss(params, batch):
        return ((batch @ params["w"]) ** 2).sum(-1)

    run = sawlog.init(project="walk", root=tmp_path, config={"statistic": "kfac"})
    params, batch = {"w": jnp.ones((4, 3))}, jnp.arange(20.0).reshape(5, 4)
    run.watch(loss, params, batch, quiet=True)
    with files_that_run() as found:
        run.record(range(5), params, batch)
    _, named = walk("gradient")
    assert {"jax/_capture_run/run.py", "jax/_capture/plan.py"} <= named
    assert missing(named) == set()
    assert named - found == set()
