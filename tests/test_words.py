"""Plain English: phrases that read as translations stay out of the source and the pages.

Each phrase is an exact one with few innocent uses, in the folders and files of ``CHECKED``.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: A phrase to avoid, and what to write instead. ``*`` stands for more letters of a word.
CALQUES = {
    "that is none": "is not a ...",
    "is none": "is not a ...",
    "there is none": "is missing, does not exist",
    "what is there": "the existing ...",
    "is there already": "exists",
    "comes about": "is computed, results from",
    "come about": "are computed, result from",
    "goes before": "takes precedence over, overrides",
    "go before": "take precedence over, override",
    "no whole number": "not an integer",
    "whole number*": "integer",
    "at hand": "available, in cache",
    "to be told": "to report",
    "so many": "the number of ..., at most `n`",
    "so much": "that much, an amount",
    "one example more or less": "the sampling error of one example",
    "in the line": "in the queue",
    "what becomes of": "what happens to",
    "is asked for": "is requested, is selected",
    "are asked for": "are requested, are selected",
    "was asked for": "was requested",
    "the course of": "the trend of",
    "made of it": "computed from it",
    "comes of it": "results",
    "gives back": "returns",
    "none but": "only",
    "in the making": "unfinished",
    "as it is for each": "for each",
    "look* at": "inspect, read, check",
    "whoever": "the caller, the process that ...",
    "nobody": "no caller, no one",
    "somebody": "a caller, another process",
    "makes no sense": "is invalid",
    "say* both": "exclude each other",
    "for good": "permanently",
    "now and then": "at an interval",
    "every so often": "at an interval",
    "without a word": "silently",
    "carry out": "run",
    "on its way": "in transit, running",
    "goes astray": "is lost",
    "as is usual": "usually",
    "has its say": "decides",
    "anew": "again",
    "meanwhile been": "been since",
    "sees to it": "ensures",
    "see to it": "ensure",
    "gave up": "removed, stopped",
    "walk* back": "run the backward pass",
    "looked for": "searched for",
    "as by": "such as, like",
    "by turns": "in rotation",
    "tell* of": "report",
    "nothing tells": "it is unknown",
    "lie in": "are in",
    "speak* for": "cover",
    "is told of": "receives",
    "each two": "pairs of ...",
    "let* expect": "suggest",
    "hand* on to": "passes to",
    "derivative of its own": "custom derivative",
    "come to their end": "reach their end",
    "comes to their end": "reaches their end",
    "kinder to": "uses ... better",
    "the job has anyway": "of the job",
    "goes on": "continues",
    "go on with": "continue with",
    "likeness": "similarity",
}

#: The same for forms of sentences: "is no sum" instead of "is not a sum".
FORMS = {
    re.compile(
        r"(?<![Tt]here )\b(?:is|are|was|were) no (?!more\b|less\b|\w+er\b)\w+"  # no longer
    ): "is not a ...",
}

#: Folders and files whose sentences are checked.
CHECKED = [
    "src/sawlog",
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples",
    "tools",
]

_PROSE = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def pattern_of(phrase: str) -> re.Pattern[str]:
    """Return a pattern for a phrase, also at the beginning of a sentence and across lines."""
    words = (re.escape(word).replace(r"\*", r"\w*") for word in phrase.split())
    first, rest = (text := r"[\s#\"]+".join(words))[0], text[1:]
    return re.compile(rf"\b[{first.upper()}{first}]{rest}\b")  # `is None` is not "is none"


PATTERNS = {phrase: pattern_of(phrase) for phrase in CALQUES}
LONGEST = {phrase: max(phrase.lower().split(), key=len).strip("*") for phrase in CALQUES}


def prose_of(path: Path, text: str) -> list[tuple[int, str]]:
    """Return the sentences of a file with their lines: all of a page, strings and comments."""
    if path.suffix != ".py":
        return [(1, re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))]
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(each.start[0], each.string) for each in found if each.type in _PROSE]


def calques_in(path: Path) -> list[str]:
    """Return the phrases to avoid in a file, each with its place and a better one."""
    text = path.read_text(encoding="utf-8")
    lowered = text.lower()
    some = {phrase: PATTERNS[phrase] for phrase, word in LONGEST.items() if word in lowered}
    some = {phrase: pattern for phrase, pattern in some.items() if pattern.search(text)}
    wanted = {pattern: CALQUES[phrase] for phrase, pattern in some.items()}
    wanted |= {form: better for form, better in FORMS.items() if form.search(text)}
    if not wanted:
        return []  # reading the tokens of a file takes longer
    return [
        f"{path.name}:{line + prose.count(chr(10), 0, match.start())}: {match[0]!r}; "
        f"better: {better}"
        for line, prose in prose_of(path, text)
        for pattern, better in wanted.items()
        for match in pattern.finditer(prose)
    ]


def files_of(place: str) -> list[Path]:
    path = ROOT / place
    found = [file for file in path.rglob("*") if file.suffix in (".md", ".py")]
    return [path] if path.is_file() else sorted(found)


@pytest.mark.parametrize("place", CHECKED)
def test_no_calques(place):
    files = files_of(place)
    assert files
    assert [found for file in files for found in calques_in(file)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "A sentence in which {} is used."),
        ("module.py", '"""Summary.\n\nIn which {} is used.\n"""\n'),
        ("module.py", "x = 1  # in which {} is used\n"),
        ("module.py", 'raise ValueError(f"In which {{x}} {} is used.")\n'),
    ],
)
def test_the_lint_finds_each(tmp_path, name, text):
    for phrase in CALQUES:
        written = phrase.replace("*", "s")
        (tmp_path / name).write_text(text.format(written))
        assert any(repr(written) in found for found in calques_in(tmp_path / name)), phrase


def test_the_lint_finds_forms_of_sentences(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A maximum is no sum. There is no rule. It is no longer one, and is no larger.")
    assert [found.split("'")[1] for found in calques_in(page)] == ["is no sum"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("module.py", "nobody = look_at\nis_none = 1  # not if it is None\n"),
        ("page.md", "```python\nnobody\n```\nA good sentence: nobodys, is nonetheless fine.\n"),
        ("module.py", '"""Return the rows of a table, so that many fit."""\n'),
    ],
)
def test_the_lint_leaves_other_text_alone(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert calques_in(tmp_path / name) == []


def test_a_phrase_across_lines_is_found(tmp_path):
    (tmp_path / "module.py").write_text('"""One.\n\nWhat\n    is there.\n"""\n# so\n')
    (found,) = calques_in(tmp_path / "module.py")
    assert found.startswith("module.py:3: 'What")


# ---- summaries of functions

#: What the docstring of a function does not begin with; ruff's D401 knows the other cases.
NOT_IMPERATIVE = {"Whether", "What", "Where", "How", "As", "Like", "Inside", "For", "Have", "Ids"}


def summaries_of(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the docstrings of functions with their lines; those of properties are nouns."""
    return [
        (each.body[0].lineno, text)
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and (text := ast.get_docstring(each))
        if not any("property" in ast.unparse(decorator) for decorator in each.decorator_list)
        if not each.name.startswith("test_")
    ]


def not_imperative(source: str) -> list[str]:
    """Return the summaries that do not say what a function does, with their lines."""
    found = summaries_of(ast.parse(source))
    return [f"{line}: {text}" for line, text in found if text.split()[0] in NOT_IMPERATIVE]


def test_summaries_of_functions_are_imperative():
    files = sorted((ROOT / "src").rglob("*.py"))
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    assert sum(len(summaries_of(ast.parse(source))) for source in sources.values()) > 1000
    assert [f"{file.name}:{each}" for file in files for each in not_imperative(sources[file])] == []


def test_a_summary_that_is_not_imperative_is_found():
    source = """
class A:
    @property
    def ok(self):
        '''Whether it is.'''

    def is_ok(self):
        '''Whether it is.

        More.
        '''

    def get(self):
        '''Return whether it is.'''
"""
    assert not_imperative(source) == ["8: Whether it is.\n\nMore."]


# ---- names of classes

CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def classes_of(path: Path) -> list[str]:
    return CLASS.findall(path.read_text(encoding="utf-8"))


def test_no_class_has_the_name_of_another():
    homes: dict[str, list[str]] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for name in classes_of(file):
            homes.setdefault(name, []).append(file.name)
    assert {"Records", "Trend", "Dashboard"} <= set(homes)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
