"""What is said of each recording of a folder, short enough to be read by a person: `python -m tests.verdicts FOLDER`.

One block each: the headline, the causes above 3 % of the wall, how far the replay is trusted, and the first three findings
with the time that they name and what they would save.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice, DeviceAdvice
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.units import duration, percent

SUFFIXES = (".json", ".json.gz", ".sqlite", ".nsys-rep")
SHOWN = 0.03  # share of the wall from which a cause is shown
FIRST = 3  # findings of a device


def recordings(folder: Path) -> list[Path]:
    """The recordings below a folder, by name."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))
    return sorted(path for path in files if not path.name.endswith(".truth.json"))


def block(path: Path, folder: Path) -> str:
    """What is said of one recording."""
    try:
        advice = advise_traces([read(path)])
    except AdviseError as error:
        return f"## {path.relative_to(folder)}\n{error}"
    return "\n".join([f"## {path.relative_to(folder)}", advice.verdict, *_lines(advice)])


def _lines(advice: Advice) -> Iterator[str]:
    for device in advice.devices:
        yield _causes(device)
        findings = advice.findings_of(device)
        yield from (f"  {place}. {_finding(finding, device)}" for place, finding in enumerate(findings[:FIRST], 1))
        if len(findings) > FIRST:
            yield f"  … and {', '.join(finding.rule for finding in findings[FIRST:])}"
    yield from (f"  ERROR {error}" for error in advice.errors)


def _causes(device: DeviceAdvice) -> str:
    """`device 0, 30.4 ms in window steps: 31 % python, 8 % copies (H2D pageable) …; replay +0.3 %, 1.2 % unexplained`."""
    wall = max(device.wall_ns, 1)
    named = [
        f"{percent(item.ns / wall, 1)} {item.cause}" + (f" ({item.detail})" if item.detail else "")
        for item in device.attribution
        if item.ns > SHOWN * wall
    ]
    trust = device.replay
    return (
        f"  device {device.device}, {duration(device.wall_ns)}, window {device.window}: {', '.join(named)}; replay "
        f"{percent(trust.error, 1, '+')}, {percent(trust.unexplained, 1)} unexplained"
        + ("" if trust.trusted else ": NO SAVINGS")
    )


def _finding(finding: Finding, device: DeviceAdvice) -> str:
    wall = max(device.wall_ns, 1)

    def span(low_high: tuple[int, int]) -> str:
        low, high = low_high
        return f"{duration(low)} to {duration(high)} ({percent(low / wall, 1)} to {percent(high / wall, 1)})"

    saves = f"saves {span(finding.saving_ns)}" if finding.saving_ns is not None else f"not priced: {finding.unpriced}"
    if finding.saving_ns != finding.alone_ns and finding.alone_ns is not None:
        saves += f", alone {span(finding.alone_ns)}"
    named = f"names {duration(finding.ns)} ({percent(finding.ns / wall, 1)})"
    return (
        f"{finding.rule} [{finding.confidence}] {named}, {saves}\n     {finding.title}: {finding.message}"
        f"\n     -> {finding.how}"
    )


def main() -> None:
    """Print the blocks."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("python -m tests.verdicts FOLDER: the folder that holds the recordings")
    folder = Path(sys.argv[1])
    for path in recordings(folder):
        print(block(path, folder), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
