"""The layers: who may import whom. Read from the syntax trees, so no code has to run for it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: What stages/contract may import besides the standard library and itself.
CONTRACT = {"numpy", "pydantic", "pydantic_core", "yaml", "stages"}

#: Modules of the trainer that must not load torch when they are imported.
NO_TORCH = ("planning/plan", "loader", "config", "cli")


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """(module, whether inside a function, line) for each import, those under TYPE_CHECKING left out."""
    package = path.relative_to(ROOT).parent.parts

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = ".".join(package[: len(package) - child.level + 1]) if child.level else ""
                module = ".".join(part for part in (base, child.module or "") if part)
                yield module, inside, child.lineno
                yield from ((f"{module}.{alias.name}", inside, child.lineno) for alias in child.names)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, inside or function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def offenders(package: str, forbidden: set[str], inside_functions: bool = True) -> list[str]:
    """`file:line imports module` for every import of a forbidden top-level name."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in files(package)
        for module, inside, line in imports(path)
        if module.split(".")[0] in forbidden and (inside_functions or not inside)
    ]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("pipeline", {"trainer", "torch"}),
        ("trainer", {"pipeline"}),
        ("stages", {"pipeline", "trainer", "ray", "torch", "click"}),
    ],
)
def test_packages_keep_apart(package, forbidden):
    assert offenders(package, forbidden) == []


def test_ray_is_imported_inside_functions_only():
    assert offenders("pipeline", {"ray"}, inside_functions=False) == []


def test_only_the_gang_of_the_trainer_knows_ray():
    found = [line.split(":")[0] for line in offenders("trainer", {"ray"})]
    assert set(found) <= {"trainer/gang.py"}
    assert offenders("trainer", {"ray"}, inside_functions=False) == []


def test_the_contract_is_light():
    standard = sys.stdlib_module_names
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in files("stages/contract")
        for module, _, line in imports(path)
        if module.split(".")[0] not in standard | CONTRACT
        or (module.split(".")[0] == "stages" and module != "stages" and not module.startswith("stages.contract"))
    ]
    assert found == []


@pytest.mark.parametrize("name", NO_TORCH)
def test_planning_does_not_import_torch(name):
    path = ROOT / "trainer" / f"{name}.py"
    if not path.exists():
        pytest.skip(f"trainer/{name}.py does not exist yet")
    assert [module for module, inside, _ in imports(path) if module.split(".")[0] == "torch" and not inside] == []


@pytest.mark.parametrize("module", ["pipeline.cli", "trainer.cli"])
def test_help_loads_nothing_heavy(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    heavy = ("ray", "torch", "pyarrow", "numba", "rich", "pandas")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["stages", "pipeline", "trainer", "benchmarks", "tests"])
def test_every_module_that_is_named_is_there(package):
    """Also where the import stands inside a function that no test runs."""
    own = {"stages", "pipeline", "trainer", "benchmarks", "tests"}

    def there(module: str) -> bool:
        place = ROOT.joinpath(*module.split("."))
        return place.with_suffix(".py").is_file() or place.is_dir()

    lost = []
    for path in files(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            lost += [f"{path.relative_to(ROOT)}:{node.lineno} {m}" for m in named if m.split(".")[0] in own and not there(m)]
    assert lost == []


def test_the_contract_loads_nothing_heavy():
    names = ", ".join(f"stages.contract.{path.stem}" for path in files("stages/contract") if path.stem != "__init__")
    code = f"import sys, {names}; print([n for n in ('ray', 'torch', 'pyarrow', 'numba', 'click') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_the_walk_sees_what_it_should():
    source = "import a.b\nfrom . import c\nfrom ..d import e\ndef f():\n    import g\nif TYPE_CHECKING:\n    import h\n"
    path = ROOT / "stages" / "contract" / "made_up.py"
    tree = ast.parse(source)

    class Made(type(path)):
        def read_text(self, *_args, **_kwargs):
            return source

    found = {(module, inside) for module, inside, _ in imports(Made(path))}
    assert len(tree.body) == 5
    assert found >= {("a.b", False), ("stages.contract.c", False), ("stages.d.e", False), ("g", True)}
    assert all(module != "h" for module, _ in found)
