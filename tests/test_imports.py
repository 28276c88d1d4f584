"""Which package may import which, read from the source, and what a run on a small trace must not load."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "analyzer" / "gpu_trace_advisor"
MOST_MODULES = 14

LAYERS: tuple[set[str], ...] = (
    {"errors"},
    {"sanitize", "units"},
    {"runtime"},
    {"quantity", "columns"},
    {"trace"},
    {"reference", "ingest", "timelines"},
    {"roofline", "attribution"},
    {"graph"},
    {"replay", "ranks"},
    {"analysis"},
    {"rulekit"},
    {"decode"},
    {"rules"},
    {"advice"},
    {"drawing"},
    {"parallel"},
    {"gate"},
    {"api", "report"},
    {"cli"},
    {"record"},
    {"integrations"},
    {"pytest_plugin"},
    {"__main__"},
)
"""Packages of gpu_trace_advisor, from the ground up. Each may import from those above it in this list, and from itself.
`gpu_trace_advisor/__init__.py` imports lazily what it makes public; no module imports it."""

LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}

LAZY = (
    "pandas",
    "networkx",
    "torch",
    "hta",
    "numpy.ma",
    "importlib.metadata",
    "multiprocessing",
    "statistics",
)
"""What is slow to import, and not needed for a small trace."""

SOURCES = sorted(
    path
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "rules").rglob("*.py"))
    if path != PACKAGE / "__init__.py" and not path.is_relative_to(PACKAGE / "rules")
)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The full names of what a module in `package` imports, inside functions too; of `from a import b`, a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    """The package directly below gpu_trace_advisor, or the module at its top, that a file belongs to."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).with_suffix("").parts[0]


def violations(part: str, names: Iterator[str]) -> list[str]:
    """Which of the imported names a module in this part may not import."""
    own = [name.split(".") for name in names if name.split(".")[0] == "gpu_trace_advisor"]
    return [
        ".".join(name)
        for name in own
        if len(name) < 2 or (name[1] != part and LEVEL.get(name[1], len(LAYERS)) >= LEVEL[part])
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(path: Path) -> None:
    package = (
        ".".join(["gpu_trace_advisor", *path.parent.relative_to(PACKAGE).parts]) if path.is_relative_to(PACKAGE) else ""
    )
    assert part_of(path) in LEVEL, "add the new package to LAYERS"
    assert violations(part_of(path), imported(ast.parse(path.read_text(encoding="utf-8")), package)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.py")), ids=lambda path: path.stem)
def test_rules_do_not_import_each_other(path: Path) -> None:
    names = imported(ast.parse(path.read_text(encoding="utf-8")), "gpu_trace_advisor.rules")
    assert not [name for name in names if name.startswith("gpu_trace_advisor.rules.")]


def test_no_package_is_a_corridor() -> None:
    folders = {path.parent for path in SOURCES if path.is_relative_to(PACKAGE)}
    crowded = {str(folder): count for folder in folders if (count := len(list(folder.glob("*.py")))) > MOST_MODULES}
    assert crowded == {}


@pytest.mark.parametrize(
    ("part", "source", "found"),
    [
        ("timelines", "from gpu_trace_advisor.trace.model import Trace", []),
        ("timelines", "from gpu_trace_advisor import trace, advice", ["gpu_trace_advisor.advice"]),
        ("timelines", "import gpu_trace_advisor.report.text.page", ["gpu_trace_advisor.report.text.page"]),
        ("timelines", "from .cli import main", ["gpu_trace_advisor.cli.main"]),
        ("timelines", "def late():\n    from gpu_trace_advisor.graph import Graph", ["gpu_trace_advisor.graph.Graph"]),
        ("timelines", "import gpu_trace_advisor", ["gpu_trace_advisor"]),
        ("trace", "from gpu_trace_advisor.timelines.steps import Window", ["gpu_trace_advisor.timelines.steps.Window"]),
        ("ingest", "from gpu_trace_advisor.ingest.raw_events import RawEvents", []),
        ("errors", "import numpy as np", []),
    ],
)
def test_the_check_sees_every_way_to_import(part: str, source: str, found: list[str]) -> None:
    assert violations(part, imported(ast.parse(source), "gpu_trace_advisor")) == found


def test_a_run_on_a_small_trace_loads_nothing_slow(sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = sample("training-dataloader")
    run = (
        "import sys; from gpu_trace_advisor.cli import main; "
        f"code = main([{str(trace)!r}, '-o', {str(tmp_path / 'advice.txt')!r}]); "
        f"sys.exit(' '.join(sorted(set({LAZY!r}) & set(sys.modules))) or code)"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "advice.txt").stat().st_size


def test_both_maps_name_every_package() -> None:
    parts = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    parts -= {"rules", "templates", "py.typed"}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert parts - set(re.findall(r"`(\w+)`", contributing)) == set()
    assert (
        parts - set(re.findall(r"\w+", ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""))
        == set()
    )
