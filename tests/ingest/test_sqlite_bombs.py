"""Pages of SQLite that are pointed at in a circle or many times, and values of sizes that the file does not have, end soon
and within the memory that any recording may take."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

PAGE = 512
INTERIOR, LEAF = 5, 13
NAMES, KERNELS = "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"
READ = """
import re, resource, sys
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest import read
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
try:
    print(f"read {len(read(sys.argv[1]))}")
except UnreadableTrace as error:
    print(error)
print(1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]))
"""
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")


@pytest.fixture
def export(sample: Callable[[str], Path], tmp_path: Path) -> Path:
    """A sample in small pages, with so many names and kernels that their tables are three pages deep or more."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(sample("sync-storm-nsys").read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"INSERT INTO StringIds VALUES (1000000, '{'y' * 100_000}')")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(2_000_000 + i, "x" * 100) for i in range(5_000)])
        while db.execute(f"SELECT COUNT(*) FROM {KERNELS}").fetchone()[0] < 5_000:
            db.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}")
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("VACUUM")
    return path


class Pages:
    """The pages of a database, to be pointed elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, bytearray(path.read_bytes())

    def root(self, table: str) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            found: int = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        return found

    def number(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 4], "big")

    def children(self, page: int) -> list[int]:
        """Where the pointers to the pages below stand; none for a leaf."""
        at = (page - 1) * PAGE
        if self.data[at] != INTERIOR:
            return []
        cells = int.from_bytes(self.data[at + 3 : at + 5], "big")
        starts = [int.from_bytes(self.data[at + 12 + 2 * i : at + 14 + 2 * i], "big") for i in range(cells)]
        return [*(at + start for start in starts), at + 8]

    def point(self, at: int, page: int) -> None:
        self.data[at : at + 4] = page.to_bytes(4, "big")

    def long_value(self) -> int:
        """Where the first page begins that goes on with the long name, behind the number of the next one."""
        return self.data.index(b"y" * (PAGE - 4), self.data.index(b"y" * 300)) - 4

    def write(self) -> None:
        self.path.write_bytes(self.data)


def circle(pages: Pages, table: str) -> None:
    root = pages.root(table)
    for at in pages.children(root):
        pages.point(at, root)


def one_below(pages: Pages, table: str) -> None:
    """On each level all pointers lead to the first page below: as many ways down as there are leaves, or far more."""
    level = pages.root(table)
    while found := pages.children(level):
        below = pages.number(found[0])
        for at in found:
            pages.point(at, below)
        level = below


def overflow_in_a_circle(pages: Pages, table: str) -> None:
    at = pages.long_value()
    assert at % PAGE == 0
    pages.point(at, at // PAGE + 1)


def longer_than_the_file(pages: Pages, table: str) -> None:
    """The row says that it is 2 GB long: a number of five bytes in place of its length and the bytes behind."""
    page, text = next(
        (page, text)
        for page in range(0, len(pages.data), PAGE)
        if pages.data[page] == LEAF and (text := pages.data.find(b"y" * 20, page, page + PAGE)) > 0
    )
    starts = [
        int.from_bytes(pages.data[page + 8 + 2 * i : page + 10 + 2 * i], "big") for i in range(pages.data[page + 4])
    ]
    cell = max(page + start for start in starts if page + start < text)
    pages.data[cell : cell + 5] = b"\x87\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    ("bomb", "table"),
    [
        (circle, NAMES), (circle, KERNELS), (one_below, NAMES), (one_below, KERNELS), (overflow_in_a_circle, NAMES),
        (longer_than_the_file, NAMES),
    ],
)  # fmt: skip
def test_what_never_ends_ends_soon(bomb: Callable[[Pages, str], None], table: str, export: Path) -> None:
    pages = Pages(export)
    assert pages.children(pages.root(table))
    bomb(pages, table)
    pages.write()
    done = subprocess.run([sys.executable, "-c", READ, str(export)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said, _, peak = done.stdout.strip().rpartition("\n")
    assert re.match(rf"read \d+$|{re.escape(str(export))}: ", said) and "\n" not in said
    assert int(peak) <= 1.5 * len(pages.data) + 300e6
