"""What tests of PyTorch capture share."""

from collections.abc import Iterator

import pytest

from tests.forks import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Start scripts that find torch and sawlog imported."""
    with Forks("torch", "sawlog.torch", "tests.torch.programs", "tests.torch.test_run") as forks:
        yield forks
