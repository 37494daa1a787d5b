"""Imports point one way; JAX's internals and optional packages stay in folders of their own.

Every check reads the source with `ast` and returns its findings as `path:line: text`, so that it
can be turned on the real tree (nothing may be found) and on small bad ones (it must be found).
"""

import pytest

from tests.source_tree import Modules, own_modules

from .layering import (
    PRIVATE,
    Check,
    check_direction,
    check_internals,
    check_optional,
    check_parameters,
    check_rooms,
    imports_of,
)


@pytest.fixture(scope="module")
def modules() -> Modules:
    found = own_modules()
    assert {"__init__.py", "errors.py", "jax/__init__.py", PRIVATE} <= set(found)
    return found


@pytest.mark.parametrize(
    "check", [check_direction, check_optional, check_internals, check_parameters, check_rooms]
)
def test_the_tree_is_clean(modules, check: Check):
    assert check(modules) == []


def test_the_reader_sees_the_imports_that_matter(modules):
    """Were relative imports or `import jax` overlooked, the checks above would pass on anything."""
    seen = [item for path, tree in modules.items() for item in imports_of(path, tree)]
    assert {"jax"} <= {item.top for item in seen}
    assert {"jax", "errors"} <= {item.unit for item in seen}
    private = modules[PRIVATE]
    assert check_internals({"jax/_other.py": private}), f"{PRIVATE} imports none: drop the rule"
