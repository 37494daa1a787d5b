"""Which tests run by default, with ``-m thorough`` and where one is named."""

from types import SimpleNamespace

import pytest
from _pytest.doctest import DoctestModule

from tests import conftest, thorough

NAMES = ["a", "b-thorough", "c[1]-turns", "c[2]-turns", "c[3]-turns", "d-long"]


class Item:
    """A test with the marks that its name ends in."""

    def __init__(self, name: str) -> None:
        self.nodeid = name
        self.marks = {mark: pytest.mark.turns(3).mark for mark in name.split("-")[1:]}

    def add_marker(self, name: str) -> None:
        self.marks[name] = pytest.mark.thorough.mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


def selected(monkeypatch, *, every=False, expression="", args=("tests",)):
    monkeypatch.setattr(conftest, "THOROUGH", every)
    items, gone = [Item(name) for name in NAMES], []
    hook = SimpleNamespace(pytest_deselected=lambda items: gone.extend(items))
    option = SimpleNamespace(markexpr=expression)
    conftest.pytest_collection_modifyitems(
        SimpleNamespace(option=option, args=args, hook=hook), items
    )
    assert sorted(item.nodeid for item in (*items, *gone)) == sorted(NAMES)
    return [item.nodeid for item in items], [i.nodeid for i in items if "thorough" in i.marks]


def test_by_default(monkeypatch):
    own = f"c[{thorough.TURN % 3 + 1}]-turns"
    assert selected(monkeypatch) == (["d-long", "a", own], [])


@pytest.mark.parametrize(
    "how", [{"every": True}, {"expression": "thorough"}, {"args": ("tests/test_a.py::test_b",)}]
)
def test_all_that_is_chosen(monkeypatch, how):
    names, marked = selected(monkeypatch, **how)
    assert sorted(names) == sorted(NAMES)
    assert names[0] == "d-long"
    assert len(marked) == 3  # pytest itself selects these for -m thorough


def test_no_parameter_always_has_the_same_value():
    items = [Item(f"t[{x}{y}]-turns") for y in "abcd" for x in "uvw"]
    gone = [item.nodeid for item in conftest.variants_left_out(items, turn=0)]
    assert {item.nodeid[2:4] for item in items if item.nodeid not in gone} == {
        "ua",
        "vb",
        "wc",
        "ud",
    }


@pytest.mark.parametrize(("worker", "swaps"), [("gw0", False), ("gw1", True), ("gw2", False)])
def test_workers_have_the_same_order(monkeypatch, worker, swaps):
    """Whichever folder they collect first."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.setattr(conftest, "THOROUGH", True)
    option = SimpleNamespace(markexpr="")
    some = SimpleNamespace(option=option, args=["tests/test_a.py"])
    every = SimpleNamespace(option=option, args=["tests", "src"] if swaps else ["src", "tests"])
    assert not conftest.begins_at_the_other_end(some)
    assert conftest.begins_at_the_other_end(every) == swaps
    names = ["src/a.py::f", "src/b.py::g", "tests/test_a.py::h", "tests/test_b.py::i"]
    items = [Item(name) for name in (names[2:] + names[:2] if swaps else names)]
    conftest.pytest_collection_modifyitems(every, items)
    assert [item.nodeid for item in items] == names


@pytest.mark.parametrize(("text", "kept"), [("x = 1\n", 1), ('"""\n>>> 1 + 1\n2\n"""\n', 2)])
def test_doctests_only_where_there_is_a_prompt(tmp_path, request, text, kept):
    path = tmp_path / "test_a.py"
    path.write_text(text)
    doctests = DoctestModule.from_parent(request.session, path=path)
    filtered = conftest.ModulesWithExamples().pytest_collect_file(path)
    next(filtered)
    with pytest.raises(StopIteration) as end:
        filtered.send(["the tests", doctests])
    assert end.value.value == ["the tests", doctests][:kept]
