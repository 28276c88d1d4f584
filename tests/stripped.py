"""Recordings with records taken away, in six ways: what is said of them must not be said with more confidence.

`python -m tests.stripped FOLDER` prints for each torch.profiler recording below the folder how far the replay of the whole
and of each of the six is trusted, and the largest saving that is still shown.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.ingest.chrome.reader import parse
from gpu_trace_advisor.ingest.kineto import to_trace

Event = dict[str, Any]
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "runtime", "driver")
OPERATIONS = ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset")
KERNELS = ("kernel", "Kernel")
RECORDED = ("cpu_op", "Operator", "python_function", "Python", "user_annotation")
WAITS = re.compile(r"Event|Wait|Synchronize", re.IGNORECASE)


def _correlation(event: Event) -> Any:
    args = event.get("args") or {}
    return args.get("correlation", args.get("Correlation"))


def _launching(events: Sequence[Event]) -> list[Event]:
    """The calls that launched an operation."""
    launched = {_correlation(event) for event in events if event.get("cat") in OPERATIONS}
    return [event for event in events if event.get("cat") in CALLS and _correlation(event) in launched]


def without_launches(events: Sequence[Event]) -> list[Event]:
    """No call that launched an operation."""
    gone = set(map(id, _launching(events)))
    return [event for event in events if id(event) not in gone]


def without_thread(events: Sequence[Event]) -> list[Event]:
    """Nothing of the thread that launched most."""
    threads = Counter((event.get("pid"), event.get("tid")) for event in _launching(events))
    gone = threads.most_common(1)[0][0] if threads else None
    return [event for event in events if event.get("ph") == "M" or (event.get("pid"), event.get("tid")) != gone]


def without_waits(events: Sequence[Event]) -> list[Event]:
    """No call that records an event, waits for one or synchronises."""
    return [
        event
        for event in events
        if not ((event.get("cat") in CALLS and WAITS.search(str(event.get("name")))) or event.get("cat") == "cuda_sync")
    ]


def without_kernels(events: Sequence[Event]) -> list[Event]:
    """Every other kernel."""
    kernels = sorted((event for event in events if event.get("cat") in KERNELS), key=lambda event: float(event["ts"]))
    gone = set(map(id, kernels[::2]))
    return [event for event in events if id(event) not in gone]


def without_operators(events: Sequence[Event]) -> list[Event]:
    """No operator, frame or range but the marks of steps."""
    return [
        event
        for event in events
        if event.get("cat") not in RECORDED or str(event.get("name")).startswith("ProfilerStep")
    ]


def half_thinned(events: Sequence[Event]) -> list[Event]:
    """Every other record of the first half."""
    timed = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: float(event["ts"]))
    gone = set(map(id, timed[: len(timed) // 2 : 2]))
    return [event for event in events if id(event) not in gone]


STRIPPERS: dict[str, Callable[[Sequence[Event]], list[Event]]] = {
    "launch calls": without_launches,
    "a host thread": without_thread,
    "event and wait calls": without_waits,
    "kernels": without_kernels,
    "operators and frames": without_operators,
    "every other record of the first half": half_thinned,
}


def advised(path: Path, strip: Callable[[Sequence[Event]], list[Event]] = list) -> Advice:
    """What is said of a recording with records taken away.

    Raises:
        AdviseError: nothing can be said.
    """
    raw = path.read_bytes()
    held = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    whole = held if isinstance(held, dict) else {"traceEvents": held}
    text = json.dumps({**whole, "traceEvents": strip(whole["traceEvents"])})
    return advise_traces([to_trace(parse(text.encode(), path.name), path)])


def told(advice: Advice) -> str:
    """`12.0 %, refused`: what of the wall is unexplained, and the largest saving that is shown all the same."""
    worst = max(advice.devices, key=lambda device: device.replay.unexplained, default=None)
    if worst is None:
        return "no GPU work"
    savings = [finding.saving_ns[1] for finding in advice.findings if finding.saving_ns]
    shown = f"saves {100 * max(savings) / worst.wall_ns:.1f} %" if savings else "no saving"
    return f"{100 * worst.replay.unexplained:.1f} %, {shown if worst.replay.trusted else 'refused'}"


def table(paths: Sequence[Path]) -> str:
    """Markdown: what is said of each recording, whole and stripped."""
    lines = ["| recording | whole | " + " | ".join(STRIPPERS) + " |", "| --- |" + " --- |" * (1 + len(STRIPPERS))]
    for path in paths:
        cells = []
        for strip in (list, *STRIPPERS.values()):
            try:
                cells.append(told(advised(path, strip)))
            except AdviseError:
                cells.append("nothing to say")
        lines.append(f"| {path.name.removesuffix('.json.gz')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("python -m tests.stripped FOLDER: the folder that holds the recordings")
    print(table(sorted(Path(sys.argv[1]).rglob("*.json.gz"))))
