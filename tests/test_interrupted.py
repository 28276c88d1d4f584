"""Files that change while they are read, writers that are killed, homes and folders where nothing can be written."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.chrome.reader import read_all, read_events
from gpu_trace_advisor.ingest.nsight.sqlite_source import Database

from tests import build as b

posix = pytest.mark.skipif(os.name != "posix", reason="signals and folders of POSIX")
EVENTS = 30_000


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Some MB, so that it is read in several goes."""
    return b.written(tmp_path / "a.json", *(b.kernel(10 * i, 10 * i + 5, i + 1) for i in range(EVENTS)))


def in_chunks(path: Path, progress: Any) -> Any:
    parallel = pytest.importorskip("gpu_trace_advisor.ingest.chrome.parallel_reader", reason="no C compiler")
    return parallel.read(path, progress, chunk_size=1 << 18)


@pytest.mark.parametrize("reader", [read_events, read_all, in_chunks])
@pytest.mark.parametrize("change", ["shrinks", "grows", "goes"])
def test_a_file_that_changes_while_it_is_read(change: str, reader: Callable[..., Any], large: Path) -> None:
    """What was there is read: of one cut off while it is read as much as came, which is said."""
    size, changed = large.stat().st_size, False

    def progress(done: int, of: int) -> None:
        nonlocal changed
        if changed:
            return
        changed = True
        if change == "shrinks":
            os.truncate(large, size // 2)
        elif change == "goes":
            large.unlink()
        else:
            with large.open("a") as file:
                file.write("x" * 5_000_000)

    raw = reader(large, progress)
    assert changed
    if change == "shrinks":
        assert 0 < len(raw) < EVENTS and raw.notes["partial"] == 1
    else:
        assert len(raw) == EVENTS


def test_an_export_that_shrinks_while_it_is_read(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """In a process of its own: what maps a file into memory would be killed by SIGBUS."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(sample("sync-storm-nsys").read_bytes())
    for large in (False, True):
        code = (
            "import os, sys\nfrom pathlib import Path\n"
            "from gpu_trace_advisor.errors import UnreadableTrace\n"
            "from gpu_trace_advisor.ingest.nsight import arrow_batches, sqlite_source as s\n"
            "s.BATCH_ROWS = arrow_batches.BATCH_ROWS = 7\n"
            f"s.SMALL_BYTES = {0 if large else 1 << 40}\n"
            "columns = ('start', 'end')\n"
            "try:\n"
            "    with s.Database(Path(sys.argv[1])) as database:\n"
            "        batches = database.batches('CUPTI_ACTIVITY_KIND_KERNEL', columns)\n"
            "        next(iter(batches)); os.truncate(sys.argv[1], 8192)\n"
            "        for table in database.tables: list(database.batches(table, ('rowid',)))\n"
            "except UnreadableTrace as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") <= 1
        path.write_bytes(sample("sync-storm-nsys").read_bytes())


KILLED = """
import os, signal, sys
from pathlib import Path
at, write = sys.argv[1], os.fdopen

def killed(*_): os.kill(os.getpid(), signal.SIGKILL)

class Half:
    def __init__(self, *args): self.file = write(*args)
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def write(self, data):
        self.file.write(data[: len(data) // 2]); self.file.flush(); killed()

if at == "before it is put in its place": Path.replace = killed
else: os.fdopen = Half
"""
COMMAND = KILLED + "from gpu_trace_advisor.cli import main\nsys.exit(main(sys.argv[2:]))"
BASELINE = KILLED + (
    "import json\nfrom gpu_trace_advisor.gate.baseline import Baseline, load_runs\n"
    "from gpu_trace_advisor.analysis.request import Request\n"
    "(run,) = load_runs(Path(sys.argv[2]), Request())\nBaseline().with_run(run).write(Path(sys.argv[3]))"
)


@posix
@pytest.mark.parametrize("at", ["half-way", "before it is put in its place"])
@pytest.mark.parametrize("option", ["-o", "--json", "--html", "a baseline"])
def test_a_writer_that_is_killed_leaves_what_was_there(
    option: str, at: str, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    target, trace = tmp_path / "out", str(sample("mlp-training"))
    target.write_text("before", encoding="utf-8")
    code, given = (BASELINE, [trace]) if option == "a baseline" else (COMMAND, [trace, option])
    done = subprocess.run([sys.executable, "-c", code, at, *given, str(target)], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert target.read_text("utf-8") == "before"


@posix
def test_two_writers_of_one_baseline_lose_no_run(sample: Callable[[str], Path], tmp_path: Path) -> None:
    code = (
        "import dataclasses, sys\nfrom pathlib import Path\n"
        "from gpu_trace_advisor.analysis.request import Request\n"
        "from gpu_trace_advisor.gate.baseline import Baseline, load_runs\n"
        "from gpu_trace_advisor.runtime.files import locked\n"
        "(run,) = load_runs(Path(sys.argv[1]), Request())\npath = Path(sys.argv[2])\n"
        "for i in range(2):\n"
        "    with locked(path):\n"
        "        known = Baseline.load(path) if path.is_file() else Baseline()\n"
        "        mine = dataclasses.replace(run, name=f'{sys.argv[3]} {i}', lanes=tuple(\n"
        "            dataclasses.replace(lane, identity=(10 * int(sys.argv[3]) + i,))\n"
        "            for lane in run.lanes))\n"
        "        known.with_run(mine).write(path)\n"
    )
    path = tmp_path / "baseline.json"  # which keeps five runs
    trace = str(sample("mlp-training"))
    writers = [subprocess.Popen([sys.executable, "-c", code, trace, str(path), str(i)]) for i in range(2)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    (runs,) = json.loads(path.read_text("utf-8"))["hardware"].values()
    assert sorted(run["name"] for run in runs) == [f"{writer} {i}" for writer in range(2) for i in range(2)]


@posix
@pytest.mark.parametrize("home", [None, "", "/nowhere", "/proc"])
def test_nothing_needs_a_home_or_a_folder_to_write_to(home: str | None, sample: Callable[[str], Path]) -> None:
    """Nor a place for what Python compiles, as in an install that is read only."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    environment |= {"TMPDIR": "/proc", "PYTHONPYCACHEPREFIX": "/proc/nowhere", "XDG_CACHE_HOME": "/proc"}
    if home is not None:
        environment["HOME"] = home
    for name in ("mlp-training", "sync-storm-nsys"):
        done = subprocess.run(
            [sys.executable, "-m", "gpu_trace_advisor", str(sample(name)), "--format", "json"],
            capture_output=True, text=True, env=environment, cwd="/", timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["devices"]


def test_an_export_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace), Database(tmp_path / "a.sqlite"):
        pass
