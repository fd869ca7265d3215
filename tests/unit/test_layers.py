"""Which folder may import which: the engine knows nothing of its tools, and no tool knows of one above it."""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "model_repository/llm/1"
CLIENT = ROOT / "client"
CLIENT_PACKAGES = ("inflight_client", "inflight_cli", "inflight_gateway")
# Where each top-level name that we import is to be found.
SOURCES = {
    "inflight": ENGINE,
    "serving": ENGINE,
    "scripts": ROOT,
    "load_tests": ROOT,
    **dict.fromkeys(CLIENT_PACKAGES, CLIENT),
}


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """All modules of our packages by name."""
    return {
        module_name(path, root): path for package, root in SOURCES.items() for path in (root / package).rglob("*.py")
    }


def imports(path: Path, name: str = "", *, top_level: bool = False) -> set[str]:
    """Full names of all that a file imports; `top_level` leaves out what is imported later or for types alone."""
    tree = ast.parse(path.read_text(), str(path))
    nodes = _run_at_import(tree.body) if top_level else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name or path} has a relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _run_at_import(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _run_at_import([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])
        else:
            yield node


def within(name: str, *packages: str) -> bool:
    """Whether a name is one of these packages or in it."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def offences(importers: Callable[[str], bool], *forbidden: str) -> list[str]:
    """Imports of the forbidden packages by the chosen modules."""
    return [
        f"{name} imports {imported}"
        for name, path in modules().items()
        if importers(name)
        for imported in imports(path, name)
        if within(imported, *forbidden)
    ]


def test_scripts_import_no_load_tests_and_no_tests() -> None:
    assert offences(lambda name: within(name, "scripts"), "load_tests", "tests") == []


def test_what_launches_the_server_imports_no_other_scripts() -> None:
    others = {
        package
        for name in modules()
        if within(name, "scripts") and not within(name, "scripts.launch")
        if (package := ".".join(name.split(".")[:2])) != "scripts"
    }
    assert others
    assert offences(lambda name: within(name, "scripts.launch"), *others) == []


def test_load_tests_import_no_tests_and_nothing_imports_the_benchmarks() -> None:
    assert offences(lambda name: within(name, "load_tests"), "tests") == []
    assert offences(lambda name: not within(name, "load_tests.bench"), "load_tests.bench") == []


def test_what_puts_load_on_a_server_knows_nothing_of_the_tools_that_use_it() -> None:
    files = {name for name, path in modules().items() if path.parent == ROOT / "load_tests"}
    tools = {name.rpartition(".")[0] for name in modules() if within(name, "load_tests") and name.count(".") > 1}
    assert {"load_tests.generator", "load_tests.records"} <= files
    assert {"load_tests.bench", "load_tests.compare", "load_tests.simulate"} <= tools
    assert offences(lambda name: name in files - {"load_tests.locustfile"}, *tools) == []


def test_models_import_no_tools_and_no_client() -> None:
    files = list((ROOT / "model_repository").rglob("*.py"))
    assert files
    forbidden = ("scripts", "load_tests", "tests", *CLIENT_PACKAGES)
    assert [(path, name) for path in files for name in imports(path) if within(name, *forbidden)] == []


def test_the_engine_knows_nothing_of_triton() -> None:
    assert offences(lambda name: within(name, "inflight"), "serving", "triton_python_backend_utils") == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    graph = {
        name: {
            target
            for imported in imports(path, name, top_level=True)
            # `from package import name` is an import of the module package.name, or of the package.
            if (target := imported if imported in known else imported.rpartition(".")[0]) in known and target != name
        }
        for name, path in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{error.args[1]}")
