"""Machine code gives what Python gives; it is kept, found again without numba, and made anew when it no longer fits."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu_trace_advisor.runtime import machine_code
from gpu_trace_advisor.runtime.machine_code import Loop

from tests import loops

ROOT = Path(__file__).parents[2]

USE = """
import sys
import numpy as np
from gpu_trace_advisor.runtime.machine_code import Loop
sums = np.zeros(3, np.int64)
count = Loop("tests.loops:add_up")(np.arange(6, dtype=np.int64).reshape(2, 3), 10, sums)
print(count, sums.tolist(), "numba" in sys.modules)
"""
RIGHT = "6 [30, 50, 70]"  # (0 + 3, 1 + 4, 2 + 5) times 10


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the code is kept."""
    pytest.importorskip("numba")
    found = tmp_path / "kept"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(found))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return found


@pytest.fixture
def never_compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine_code, "_compiling", False)
    yield


def run(code: str = USE) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_every_kind_of_argument_arrives() -> None:
    columns, sums = np.arange(-6, 6, dtype=np.int64).reshape(4, 3), np.zeros(3, np.int64)
    assert Loop("tests.loops:add_up")(columns, np.int64(-2), sums) == 12
    assert sums.tolist() == (columns.sum(axis=0) * -2).tolist()
    flags, small = np.array([True, False, True]), np.zeros(3, np.int8)
    assert Loop("tests.loops:mark")(flags, small) is None
    assert small.tolist() == [3, -3, 3]


def test_other_types_are_other_code() -> None:
    loop = Loop("tests.loops:add_up")
    for dtype in (np.int64, np.int32, np.uint8):
        columns, sums = np.full((2, 2), 200, dtype), np.zeros(2, np.int64)
        assert loop(columns, 1, sums) == 4
        assert sums.tolist() == [2 * int(columns[0, 0])] * 2


def test_a_view_that_leaves_items_out_is_refused() -> None:
    columns = np.zeros((4, 4), np.int64)
    with pytest.raises(ValueError, match="one behind the other"):
        Loop("tests.loops:add_up")(columns[:, ::2], 1, np.zeros(2, np.int64))


def test_an_exception_inside_becomes_one_outside() -> None:
    out = np.zeros(1, np.int64)
    Loop("tests.loops:divide")(7, out)
    assert out[0] == 14
    with pytest.raises(ArithmeticError, match=r"tests\.loops:divide"):
        Loop("tests.loops:divide")(0, out)


def test_what_is_kept_runs_without_numba(folder: Path) -> None:
    assert run() == f"{RIGHT} True"
    (kept,) = folder.iterdir()
    assert run() == f"{RIGHT} False"
    assert [*folder.iterdir()] == [kept]


@pytest.mark.parametrize("cut", ["half", "a byte", "empty", "no object"])
def test_a_damaged_file_is_made_anew(folder: Path, cut: str) -> None:
    run()
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    damaged = {
        "half": whole[: len(whole) // 2],
        "a byte": whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:],
        "empty": b"",
        "no object": b"a b 1 2\nxyz",
    }
    kept.write_bytes(damaged[cut])
    assert run() == f"{RIGHT} True"
    assert kept.read_bytes() == whole


def test_another_mode_is_other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert run() == f"{RIGHT} True"
    assert len([*folder.iterdir()]) == 2


def test_it_is_kept_in_the_users_cache_where_the_first_folder_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    folder.write_text("a file where the folder would be")
    assert run() == f"{RIGHT} True"
    assert run() == f"{RIGHT} False"
    assert [path.suffix for path in (tmp_path / "home" / "gpu-trace-advisor").iterdir()] == [".code"]


def test_it_works_where_nothing_can_be_kept(folder: Path, tmp_path: Path) -> None:
    folder.write_text("")
    (tmp_path / "home").write_text("")
    assert run() == f"{RIGHT} True"
    assert run() == f"{RIGHT} True"


def test_nothing_is_compiled_unless_it_is_worth_it(never_compiling: None) -> None:
    loop, args = Loop("tests.loops:mark"), (np.zeros(1, np.bool_), np.zeros(1, np.int8))
    assert not loop.is_ready(*args)
    machine_code.compile_from_now()
    assert loop.is_ready(*args)
    assert Loop("tests.loops:mark").is_ready(*args)


def test_it_is_not_ready_where_numba_is_missing(never_compiling: None, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code.compile_from_now()
    monkeypatch.setitem(sys.modules, "numba", None)
    loop, args = Loop("tests.loops:mark"), (np.zeros(1, np.bool_), np.zeros(1, np.int8))
    assert not loop.is_ready(*args)
    with pytest.raises(ImportError):
        loop(*args)


def test_several_threads_may_want_it_at_once() -> None:
    loop = Loop("tests.loops:add_up")
    columns = np.arange(6, dtype=np.int64).reshape(2, 3)
    found: list[list[int]] = []

    def work() -> None:
        for factor in range(50):
            sums = np.zeros(3, np.int64)
            loop(columns, factor, sums)
            found.append((sums - columns.sum(axis=0) * factor).tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[0, 0, 0]] * 200


def test_the_plain_functions_do_the_same() -> None:
    columns, sums = np.arange(6, dtype=np.int64).reshape(2, 3), np.zeros(3, np.int64)
    assert (loops.add_up(columns, 10, sums), sums.tolist()) == (6, [30, 50, 70])
