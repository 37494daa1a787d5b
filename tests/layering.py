"""Which package may import which, and the checks of it."""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass

from tests.source_tree import Modules

# Top to bottom. A unit (a file or folder of src/sawlog) may import any unit of a lower layer, and
# nothing of its own layer but itself. `__init__` is the package's face, `from sawlog import log`.
LAYERS = (
    ("__main__",),
    ("accelerate", "cli", "huggingface", "lightning", "testing"),
    ("demo",),
    ("report",),
    ("analysis", "utils"),
    ("__init__",),
    ("_init", "_log", "loggers"),
    ("logix",),
    ("jax", "torch"),
    ("capture",),
    ("influence",),
    ("inspect",),
    ("curvature", "example_data", "run_files", "sinks"),
    ("factored", "store"),
    ("records",),
    ("_array_device", "_figures", "_html", "_progress"),
    ("_csv", "_format", "_rich", "_table", "_validate"),
    (
        "_arrays",
        "_atomic",
        "_current_run",
        "_lifecycle",
        "_names",
        "_optional",
        "_paths",
        "_png",
        "_reductions",
        "_text",
        "_trend",
        "_pool",
        "_turn",
        "_worker",
    ),
    ("errors",),
)
HEIGHT = {unit: -depth for depth, units in enumerate(LAYERS) for unit in units}

# Optional package -> the units that may import it at module level. All others import it inside the
# function that needs it, through `_optional.require`.
OPTIONAL = {
    "jax": {"demo", "jax", "loggers"},
    "jaxlib": {"jax"},
    "torch": {"demo", "torch", "huggingface", "lightning"},
    "accelerate": {"accelerate"},
    "transformers": {"huggingface"},
    "datasets": {"huggingface"},
    "lightning": {"lightning"},
    "pytorch_lightning": {"lightning"},
    "PIL": set(),
    "equinox": set(),
    "flax": set(),
    "jinja2": set(),
    "mlflow": set(),
    "neptune": set(),
    "optax": set(),
    "plotly": set(),
    "pyarrow": set(),
    "starlette": set(),
    "tensorboard": set(),
    "trackio": set(),
    "uvicorn": set(),
    "wandb": set(),
    "rich": {"_table", "cli", "demo", "sinks"},
    "tyro": {"cli"},
}

# These never import a framework, not even inside a function.
FRAMEWORKS = {"jax", "jaxlib", "torch"}
FRAMEWORK_FREE = {
    "capture",
    "curvature",
    "errors",
    "example_data",
    "factored",
    "influence",
    "inspect",
    "records",
    "_reductions",
    "report",
    "run_files",
    "sinks",
    "store",
}

COMPAT = "jax/_compat/"
PRIVATE = COMPAT + "private.py"  # the imports of private modules
VERSIONS = "jax/_versions.py"  # may ask for the version

Check = Callable[[Modules], list[str]]


@dataclass(frozen=True)
class Import:
    """One imported name, made absolute."""

    name: str
    line: int
    at_module_level: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def unit(self) -> str | None:
        """The part of sawlog that is imported; None for other packages."""
        if self.top != "sawlog":
            return None
        second = self.name.split(".")[1:2]
        return second[0] if second and second[0] in HEIGHT else "__init__"


def unit_of(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


@functools.cache
def imports_of(path: str, tree: ast.Module) -> list[Import]:
    package = ["sawlog", *path.split("/")[:-1]]
    found = []
    for node, at_module_level in _imports(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = base + ([node.module] if node.module else [])
            names = [".".join([*parts, alias.name]) for alias in node.names]
        found += [Import(name, node.lineno, at_module_level) for name in names]
    return found


def _imports(tree: ast.Module) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import, and whether it runs when the module is imported."""
    found, left = [], [(tree, True)]
    while left:  # a list, because generators within generators take seconds
        node, at_module_level = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, at_module_level))
        if isinstance(node, ast.expr):
            continue  # no statement inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at_module_level = False
        unrun = node.body if _is_type_checking(node) else []
        left += [
            (child, at_module_level and child not in unrun) for child in ast.iter_child_nodes(node)
        ]
    return sorted(found, key=lambda each: each[0].lineno)


def _is_type_checking(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Attribute(value=ast.Name(id="typing"), attr="TYPE_CHECKING")):
            return True
    return False


def check_direction(modules: Modules) -> list[str]:
    found = []
    for path, tree in modules.items():
        unit = unit_of(path)
        if unit not in HEIGHT:
            found.append(f"{path}:1: {unit!r} has no layer; enter it in LAYERS of {__name__}")
            continue
        for item in imports_of(path, tree):
            if item.unit in (None, unit) or HEIGHT[item.unit] < HEIGHT[unit]:
                continue
            found.append(f"{path}:{item.line}: {unit!r} may not import {item.name} (see LAYERS)")
    return found


def check_optional(modules: Modules) -> list[str]:
    found = []
    for path, tree in modules.items():
        unit = unit_of(path)
        for item in imports_of(path, tree):
            homes = OPTIONAL.get(item.top)
            if homes is not None and item.at_module_level and unit not in homes:
                found.append(f"{path}:{item.line}: {item.name} imported at module level")
            if item.top in FRAMEWORKS and unit in FRAMEWORK_FREE:
                found.append(f"{path}:{item.line}: {item.name} imported in framework-free {unit!r}")
    return found


def check_internals(modules: Modules) -> list[str]:
    """Only `jax/_compat/` touches JAX's internals or asks for its version."""
    found = []
    for path, tree in modules.items():
        for item in imports_of(path, tree):
            if _is_internal(item.name) and path != PRIVATE:
                found.append(f"{path}:{item.line}: {item.name} belongs in {PRIVATE}")
        if path.startswith(COMPAT):
            continue
        nodes = [*ast.walk(tree)]
        docstrings = _docstrings(nodes)
        for node in nodes:
            if not isinstance(node, ast.Attribute | ast.Constant | ast.Call):
                continue
            if path == VERSIONS and _is_version(node):
                continue
            if _mentions_internal(node) and node not in docstrings:
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)} belongs in {COMPAT}")
    return found


# The folders of src/sawlog/jax, top to bottom, as LAYERS; imports inside of functions are free.
ROOMS = (
    ("_capture_run", "_training"),
    ("_runs",),
    ("_saving",),
    ("_transforms", "_watch"),
    ("_capture", "_logdict", "_rules"),
    ("_core",),
    ("_compat",),
)


def check_rooms(modules: Modules) -> list[str]:
    """Imports between the folders of `jax/` point one way."""
    height = {f"sawlog.jax.{room}": -depth for depth, rooms in enumerate(ROOMS) for room in rooms}
    found = []
    for path, tree in modules.items():
        own = ".".join(["sawlog", *path.split("/")[:2]])
        if path.count("/") < 2 or unit_of(path) != "jax":
            continue
        if own not in height:
            found.append(f"{path}:1: {own!r} has no layer; enter it in ROOMS of {__name__}")
            continue
        for item in imports_of(path, tree):
            other = ".".join(item.name.split(".")[:3])
            if other == own or other not in height or not item.at_module_level:
                continue
            if height[other] >= height[own]:
                found.append(f"{path}:{item.line}: {own!r} may not import {item.name} (see ROOMS)")
    return found


# Parameters of sawlog's own primitives.
OWN_PARAMETERS = {"gated", "keys", "site"}


def check_parameters(modules: Modules) -> list[str]:
    """Only `jax/_compat/` knows what JAX calls the parameters of its primitives."""
    found = []
    for path, tree in modules.items():
        if path.startswith(COMPAT) or unit_of(path) != "jax":
            continue
        for node in ast.walk(tree):
            name = _parameter(node)
            if name is not None and name not in OWN_PARAMETERS:
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)} belongs in {COMPAT}")
    return found


def _parameter(node: ast.AST) -> str | None:
    match node:
        case ast.Subscript(
            value=ast.Name(id="params") | ast.Attribute(attr="params"),
            slice=ast.Constant(value=str(name)),
        ):
            return name
        case ast.Call(
            func=ast.Attribute(
                value=ast.Name(id="params") | ast.Attribute(attr="params"), attr="get" | "pop"
            ),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return name
    return None


def _is_internal(dotted: str) -> bool:
    top, _, rest = dotted.partition(".")
    second = rest.partition(".")[0]
    return top in ("jax", "jaxlib") and second in (
        "_src",
        "version",
        "__version__",
        "__version_info__",
    )


def _is_version(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("__version__", "__version_info__")


def _mentions_internal(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="_src"):  # whatever name jax goes by
            return True
        case ast.Attribute(value=ast.Name(id=top), attr=second):
            return _is_internal(f"{top}.{second}")
        case ast.Constant(value=str(text)):  # import_module("jax._src.core")
            return "jax._src" in text
        case ast.Call(func=ast.Name(id="version") | ast.Attribute(attr="version"), args=[package]):
            return isinstance(package, ast.Constant) and package.value in ("jax", "jaxlib")
    return False


def _docstrings(nodes: list[ast.AST]) -> set[ast.AST]:
    """Docstrings are prose: they may say why `_compat` exists."""
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
