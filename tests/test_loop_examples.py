"""Training loops of flax and equinox, with logs from inside of them."""

import importlib
from pathlib import Path

import pytest

import sawlog

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.turns
@pytest.mark.parametrize(("name", "seeds"), [("flax_loop", 1), ("equinox_loop", 4)])
def test_loop(name, seeds, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module(name).main(["--steps", "20", "--folder", str(tmp_path)])
    for seed in range(seeds):
        logs = sawlog.load(tmp_path / f"seed-{seed}")
        assert logs["loss"].shape == (20,)
        assert logs["loss"][-1] < logs["loss"][0]
        assert (logs["grad_norm"] > 0).all()
    assert capsys.readouterr().out.count("loss") == seeds
