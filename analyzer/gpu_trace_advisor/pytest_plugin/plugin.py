"""Budgets for GPU programs in a test suite: the `efficiency` fixture and marker.

    @pytest.mark.efficiency(idle="10%", launches=200, syncs=0, against="decode")
    def test_decode(efficiency):
        with efficiency.record() as steps:
            for _ in steps:
                decode(batch)

    def test_saved_trace(efficiency):
        efficiency.check("trace.json", idle="10%")

Only pytest is imported until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpu_trace_advisor.pytest_plugin.fixture import Efficiency

MARKER = (
    'efficiency(idle="10%", launches=200, …, against="name"): limits on what `efficiency.record` or `efficiency.check` '
    "finds, and the baseline that it is held against"
)
PREFIX = "efficiency."
"""Of the properties that a test reports: to JUnit, and from xdist's workers to the summary."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("efficiency", "efficiency of GPU programs")
    group.addoption("--efficiency-update", action="store_true", help="write the baselines anew, or a run more to them")
    group.addoption("--efficiency-html", metavar="DIR", help="keep a report of what each test recorded")
    group.addoption("--efficiency-require-gpu", action="store_true", help="fail instead of skip where there is no GPU")
    group.addoption("--efficiency-baselines", metavar="DIR", help="where baselines lie (default: efficiency)")
    parser.addini("efficiency_baselines", "folder of the baselines, from the root folder", default="efficiency")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def efficiency(request: pytest.FixtureRequest) -> Efficiency:
    """Records a block, or reads a trace, and holds it against the test's limits and baseline."""
    from gpu_trace_advisor.pytest_plugin.fixture import Efficiency

    item: pytest.Item = request.node
    item.user_properties[:] = [pair for pair in item.user_properties if not pair[0].startswith(PREFIX)]
    made = Efficiency.of_test(request, PREFIX)
    item.stash[MEASURED] = made
    return made


MEASURED: pytest.StashKey[Efficiency] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test with limits that measures nothing has not kept them."""
    yield
    if item.get_closest_marker("efficiency") is None:
        return
    made = item.stash.get(MEASURED, None)
    if made is None or not made.measured:
        pytest.fail(
            "marked `efficiency`, but nothing was measured: use the fixture's efficiency.record() or efficiency.check()",
            pytrace=False,
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A table of tests, what was limited, and what was found."""
    rows = []
    for category in ("passed", "failed", "error", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(category, ()):
            if getattr(report, "when", None) == "call":
                named = [(key, value) for key, value in report.user_properties if str(key).startswith(PREFIX)]
                rows += [(report.nodeid, key[len(PREFIX) :], *f"{value}; ; ".split("; ")[:3]) for key, value in named]
    if not rows:
        return
    from gpu_trace_advisor.sanitize import clean, printable

    rows = [tuple(map(clean, row)) for row in rows]
    terminalreporter.section("efficiency")
    notes = [row for row in rows if row[1] == "note"]
    table = [("test", "what", "found", "limit", ""), *(row for row in rows if row[1] != "note")]
    sizes = [max(len(row[i]) for row in table) for i in range(5)]
    for row in table if len(table) > 1 else ():
        line = "  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip()
        terminalreporter.write_line(printable(line))
    for nodeid, _, note, *_ in notes:
        terminalreporter.write_line(printable(f"{nodeid}: {note}"))
