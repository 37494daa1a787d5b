import pytest

from tests.cli.stores import Terminal, make_run


@pytest.fixture
def sawlog_(capsys, monkeypatch) -> Terminal:
    """``sawlog_("show", path, width=80)`` runs the command line."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return Terminal(capsys, monkeypatch)


@pytest.fixture
def run(tmp_path):
    """A store with three segments."""
    return make_run(tmp_path / "run")
