"""What every test may ask for: the project's files, its sample traces and, where they lie, recordings of others."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REAL = "ADVISE_REAL_TRACES"
BROWSER = "ADVISE_BROWSER"
PLAIN = "ADVISE_PLAIN"
FORMATS = (".json.gz", ".json", ".sqlite")


NEEDS = {
    "hta": "hta", "torch": "torch", "cluster": "distributed", "huggingface": "transformers", "lightning": "lightning",
    "mcp": "mcp", "notebook": "nbclient",
}  # fmt: skip
"""Mark -> the optional package without which a test of that mark cannot run."""


def pytest_configure() -> None:
    """With ADVISE_PLAIN the tests of this process run as where the package was built without a C compiler."""
    if os.environ.get(PLAIN):
        import gpu_trace_advisor.runtime as runtime

        from tests.plain_loops import plain_loops

        sys.modules["gpu_trace_advisor.ingest.chrome._scan"] = None  # type: ignore[assignment]
        runtime.loops = sys.modules["gpu_trace_advisor.runtime.loops"] = plain_loops()


collect_ignore = (
    [] if find_spec("torch") else ["roofline/test_flop_counter.py"]
)  # which asks torch while it is collected


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need what is not there are deselected, not skipped: `real` ones the folder that ADVISE_REAL_TRACES
    names, `browser` ones the program that ADVISE_BROWSER names, others an optional package."""
    folder = os.environ.get(REAL)
    if folder and not Path(folder).is_dir():
        raise pytest.UsageError(f"{REAL}: no folder {folder}")
    missing = {mark for mark, package in NEEDS.items() if find_spec(package) is None}
    if not folder:
        missing.add("real")
    if not os.environ.get(BROWSER):
        missing.add("browser")
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in missing)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder with recordings of others; for tests marked `real`."""
    folder = os.environ.get(REAL)
    if not folder:
        pytest.fail(f"a test that uses real_traces needs the mark `real` ({REAL} is not set)")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def sample() -> Callable[[str], Path]:
    """Where a sample trace lies, by its name in traces/ with or without the suffix."""

    def find(name: str) -> Path:
        for suffix in ("", *FORMATS):
            path = ROOT / "traces" / (name + suffix)
            if path.is_file():
                return path
        raise FileNotFoundError(f"no sample trace {name} in traces/")

    return find


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def project_files() -> list[Path]:
    """Every file of the project: what git tracks or would add; without git, what is neither built nor hidden."""
    git = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if not any(map(built, path.relative_to(ROOT).parts[:-1]))]
    return sorted(path for path in paths if path.is_file())


def built(folder: str) -> bool:
    """Whether a folder of this name holds what tools made."""
    hidden = folder.startswith(".") and folder != ".ci"
    return hidden or folder in ("build", "dist", "__pycache__") or folder.endswith(".egg-info")
