"""What `make docs` relies on: drawings, links, pages of the API, and nothing from the network."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import sawlog
from tools import benchmark_page
from tools.docs_site._links import PAGE_OF, relinked
from tools.docs_site._offline import remote_loads
from tools.docs_site._public import MODULES
from tools.drawings import PICTURES
from tools.drawings._pen import COLOURS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


# -- drawings --------------------------------------------------------------------------------------


def test_drawings_are_those_of_the_script():
    files = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("drawings/*.svg")}
    assert files.keys() == PICTURES.keys()
    stale = [name for name, picture in PICTURES.items() if files[name] != picture()]
    assert stale == [], "python -m tools.drawings"


@pytest.mark.parametrize("name", PICTURES)
def test_a_drawing_is_xml_with_words_for_those_who_do_not_see_it(name):
    root = ElementTree.fromstring(PICTURES[name]())
    assert root.get("role") == "img"
    assert len(root.get("aria-label")) > 20
    used = set(re.findall(r"#[0-9a-f]{6}", PICTURES[name]()))
    assert used == {colour for pair in COLOURS.values() for colour in pair}, "for both themes"


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "file", "page", "expected"),
    [
        ("[a](jax.md#x)", "docs/torch.md", "docs/torch.md", "[a](jax.md#x)"),
        (
            "[a](../src/sawlog/store/FORMAT.md)",
            "docs/store.md",
            "docs/store.md",
            "[a](reference/format.md)",
        ),
        (
            "[a](docs/jax.md), [b](CHANGELOG.md#x)",
            "ARCHITECTURE.md",
            "docs/project/architecture.md",
            "[a](../jax.md), [b](changelog.md#x)",
        ),
        (
            "[a](https://x.y/z.md) [b](#c)",
            "docs/a.md",
            "docs/a.md",
            "[a](https://x.y/z.md) [b](#c)",
        ),
    ],
)
def test_links_lead_to_the_page_that_has_the_text(text, file, page, expected):
    assert relinked(text, file, page) == expected


def test_included_files_and_their_pages_exist():
    assert [path for pair in PAGE_OF.items() for path in pair if not (ROOT / path).is_file()] == []


def test_the_index_for_language_models_names_pages_that_exist():
    links = re.findall(r"\]\(([^)]+)\.html\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 25
    assert [link for link in links if not (DOCS / f"{link}.md").is_file()] == []


# -- pages of the API ------------------------------------------------------------------------------


def test_every_public_module_has_a_page():
    public = {"sawlog", "sawlog.cli", *(f"sawlog.{name}" for name in sawlog._SUBMODULES)}
    assert set(MODULES) == public
    for module in MODULES:
        page = DOCS / "reference" / "api" / f"{module.replace('.', '-')}.md"
        assert f"```{{public-api}} {module}\n" in page.read_text(encoding="utf-8")


# -- nothing from the network ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<script async src="//cdn.example/x.js"></script>',
        "<img alt='a' src='http://example.org/badge.svg'>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect">',
        '@import url("https://fonts.example/css");',
        "@font-face{src:url(https://fonts.example/a.woff2)}",
    ],
)
def test_what_a_page_would_load_is_found(text):
    assert remote_loads(f"<p>before</p>{text}<p>after</p>")


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://example.org">a link is loaded by no one but the reader</a>',
        '<script src="_static/x.js"></script><link rel="stylesheet" href="_static/x.css">',
        '<link rel="canonical" href="https://example.org/">',
        "<code>&lt;img src=https://example.org/x.png&gt;</code>",
        ".a{background:url(data:image/svg+xml;base64,AAAA)}",
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    ],
)
def test_what_a_page_has_is_left_alone(text):
    assert remote_loads(text) == []


# -- benchmarks ------------------------------------------------------------------------------------


def test_the_page_of_benchmarks_is_that_of_the_results():
    results = benchmark_page.load()
    assert len(results) > 10
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == benchmark_page.page(results), (
        "python -m tools.benchmark_page"
    )


def test_every_result_has_a_command_that_exists_and_is_shown():
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for name, result in benchmark_page.load().items():
        script = result["command"].split()[1]
        assert (ROOT / script).is_file(), name
        assert result["command"] in text, name


def test_pages_that_quote_figures_agree_with_the_results():
    assert benchmark_page.stale_quotes(benchmark_page.load()) == []


def test_places_are_filled_from_the_row_that_they_name():
    rows = [
        {"what": "scan", "who": "a / b: 11.4 M pairs/s", "ratio": 0.123456, "seconds": 0.25},
        {"what": "scan, long", "who": "a / c", "ratio": 2301.0},
    ]
    run = {"command": "python x.py", "versions": {"jax": "0.10.2"}, "machine": "", "rows": rows}
    fill = lambda text: benchmark_page.filled(text, {"own": run})
    assert fill("{{own}}") == "`python x.py` (JAX 0.10.2)"
    assert fill("{{own | scan | a / b}}, {{own | scan | a / c | ,.0f}}") == "0.12, 2,301"
    assert fill("{{own | scan | a / b | seconds ms.0f}} {{own | scan | a / b | rate .1f}}") == (
        "250 11.4"
    )
    for wrong in ("other", "own | scan | a", "own | gather | a / b"):
        with pytest.raises(LookupError, match=re.escape(wrong)):
            fill(f"{{{{{wrong}}}}}")
