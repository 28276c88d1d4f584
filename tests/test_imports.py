"""Who may import whom in analyzer/, read from the source, and what a run on a small trace must not load."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "analyzer"

LAYERS: tuple[set[str], ...] = (
    {"machine_code", "narrow"},
    {"classes", "errors", "compiled", "intervals", "distinct", "heap", "lean", "nanoseconds", "units"},
    {"trace", "sharing"},
    {"ingest", "kernels", "facts", "shapes", "lookup", "run", "align"},
    {"host", "hardware", "formulas", "matching", "stragglers"},
    {"device_timeline", "traffic", "diagram"},
    {"costs", "geometry"},
    {"calibration"},
    {"inkernel"},
    {"roofline"},
    {"attribution"},
    {"window", "repetition"},
    {"summary", "software", "graph"},
    {"health"},
    {"phase", "replay"},
    {"changes", "critical", "utilisation"},
    {"fixes"},
    {"study"},
    {"rule", "collectives", "decoding", "pricing"},
    {"passes", "harness"},
    {"chains"},
    {"evidence", "engine", "digest", "ranks", "ladder", "serving"},
    {"rendezvous"},
    {"advice", "progress"},
    {"verdict"},
    {"analysis", "places"},
    {"spread"},
    {"noise", "quantity", "kept_run"},
    {"comparability", "budget_numbers"},
    {"baseline", "compare", "budget"},
    {"gate"},
    {"api", "report"},
    {"cli", "record"},
    {"pytest_fixture"},
    {"pytest_plugin"},
    {"__main__"},
)
"""Modules and packages of analyzer/. Each may import from the layers above it, a package from itself too.
`analyzer/__init__.py` imports lazily what it makes public; no module imports it."""

LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}

LAZY = (
    "numba",
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

RULES_MAY_USE = LEVEL["engine"]
"""Rules import from the layers above the engine, and `evidence`; never each other."""

SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


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
    """The module or package directly below analyzer/ that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def violations(part: str, names: Iterator[str]) -> list[str]:
    """Which of the imported names a module in this part may not import."""
    own = [name.split(".") for name in names if name.split(".")[0] == "analyzer"]
    return [
        ".".join(name)
        for name in own
        if len(name) < 2 or (name[1] != part and LEVEL.get(name[1], len(LAYERS)) >= LEVEL[part])
    ]


def test_every_module_has_a_layer() -> None:
    assert {part_of(path) for path in SOURCES} <= LEVEL.keys(), "add the new module to LAYERS"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_to_earlier_layers(path: Path) -> None:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    names = imported(ast.parse(path.read_text(encoding="utf-8")), package)
    assert violations(part_of(path), names) == []


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.py")), ids=lambda path: path.stem)
def test_rules_import_neither_each_other_nor_what_reads_their_findings(path: Path) -> None:
    for name in imported(ast.parse(path.read_text(encoding="utf-8")), "analyzer.rules"):
        parts = name.split(".")
        if parts[0] == "analyzer":
            assert parts[1] == "evidence" or LEVEL.get(parts[1], RULES_MAY_USE) < RULES_MAY_USE, name


@pytest.mark.parametrize(
    ("part", "source", "found"),
    [
        ("device_timeline", "from analyzer.trace import Trace", []),
        ("device_timeline", "from analyzer import trace, advice", ["analyzer.advice"]),
        ("device_timeline", "import analyzer.report.text", ["analyzer.report.text"]),
        ("device_timeline", "from .cli import main", ["analyzer.cli.main"]),
        ("device_timeline", "def late():\n    from analyzer.attribution import split", ["analyzer.attribution.split"]),
        ("device_timeline", "import analyzer", ["analyzer"]),
        ("host", "from analyzer.window import Window", ["analyzer.window.Window"]),
        ("ingest", "from analyzer.ingest.raw import RawEvents", []),
        ("cli", "from analyzer.rules import host_sync", ["analyzer.rules.host_sync"]),
        ("errors", "import numpy as np", []),
    ],
)
def test_the_check_sees_every_way_to_import(part: str, source: str, found: list[str]) -> None:
    assert violations(part, imported(ast.parse(source), "analyzer")) == found


def test_a_run_on_a_small_trace_loads_nothing_slow(sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = sample("training-dataloader")
    run = (
        "import sys; from analyzer.cli import main; "
        f"code = main([{str(trace)!r}, '-o', {str(tmp_path / 'advice.txt')!r}]); "
        f"sys.exit(' '.join(sorted(set({LAZY!r}) & set(sys.modules))) or code)"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "advice.txt").stat().st_size
