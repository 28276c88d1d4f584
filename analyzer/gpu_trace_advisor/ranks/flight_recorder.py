"""Dumps of PyTorch's NCCL flight recorder beside the traces: who hung in a collective, who did not come, who called another.

A rank writes `nccl_trace_rank_N` when a collective times out: a pickle, or JSON with the same keys (`version`, `pg_config`,
`entries`; torch/csrc/distributed/c10d/FlightRecorder.hpp). A pickle that asks for anything but plain values is refused.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpu_trace_advisor.ingest import TRACE_NAMES, natural
from gpu_trace_advisor.ingest.assemble import rank_in_name
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.sanitize import printable
from gpu_trace_advisor.trace.model import Note

MOST_BYTES = 64 << 20  # of a dump: the recorder keeps some thousand calls
LONGEST_NAME = 80
NAMED = 8


@dataclass(frozen=True)
class Call:
    """A collective as one rank recorded it."""

    group: str
    number: int
    name: str
    state: str
    """`scheduled`, `started` or `completed`."""


class _PlainValues(pickle.Unpickler):
    """Loads what consists of dicts, lists, tuples, text and numbers; nothing in it is called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("it asks for code to be run")


def dumps_in(folder: Path) -> list[Path]:
    """The files in a folder whose names are those of dumps."""
    try:
        files = [path for path in folder.iterdir() if not path.name.endswith(TRACE_NAMES) and not path.suffix]
        named = [path for path in files if rank_in_name(path.name) is not None and path.is_file()]
    except OSError:
        return []
    return sorted((path for path in named if "trace" in path.name), key=natural)


def notes_of(paths: Iterable[Path]) -> list[Note]:
    """What the dumps say of collectives that did not end or do not match; those that cannot be read are named."""
    calls: dict[int, list[Call]] = {}
    notes = []
    for path in paths:
        try:
            calls[rank_in_name(path.name) or 0] = _calls(path)
        except Exception as error:  # a damaged pickle can raise anything
            why = str(error) if isinstance(error, pickle.UnpicklingError | ValueError) else type(error).__name__
            text = f"{printable(path.name)}: no flight-recorder dump that can be read: {printable(why)[:LONGEST_NAME]}"
            notes.append(Note("flight-recorder", text, 1))
    return notes + [Note("flight-recorder", f"flight recorder: {text}", 1) for text in told(calls)]


def told(calls: Mapping[int, Sequence[Call]]) -> list[str]:
    """Of each group the first collective that ranks called differently or that did not end; the calls by rank."""
    groups: dict[str, dict[int, dict[int, Call]]] = defaultdict(lambda: defaultdict(dict))
    for rank, mine in sorted(calls.items()):
        for call in mine:
            groups[call.group][rank][call.number] = call
    found = []
    for group, by_rank in groups.items():
        oldest = max(min(mine) for mine in by_rank.values())  # what all ranks still remember
        for number in sorted({number for mine in by_rank.values() for number in mine if number >= oldest}):
            here = {rank: mine[number] for rank, mine in by_rank.items() if number in mine}
            if text := _fault(number, here, by_rank):
                found.append(f"group {group}: {text}")
                break
    return found


def _fault(number: int, here: Mapping[int, Call], by_rank: Mapping[int, Mapping[int, Call]]) -> str:
    """What is wrong with a collective; empty where nothing is."""
    names: dict[str, list[int]] = defaultdict(list)
    for rank, call in here.items():
        names[call.name].append(rank)
    if len(names) > 1:
        each = "; ".join(f"{name} on {_ranks(ranks)}" for name, ranks in names.items())
        return f"call {number} is not the same collective on all ranks: {each}"
    hung = [rank for rank, call in here.items() if call.state != "completed"]
    if not hung:
        return ""
    (name,) = names
    absent = [rank for rank in by_rank if rank not in here]
    where = f"{name}, call {number}, did not end on {_ranks(hung)}"
    if not absent:
        return f"{where}; all ranks with a dump called it"
    last = ", ".join(str(max(by_rank[rank])) for rank in absent[:NAMED])
    return f"{where}: {_ranks(absent)} did not come, whose last call is {last}"


def _ranks(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:NAMED])) + (" …" if len(ranks) > NAMED else "")
    return f"rank{'s' * (len(ranks) > 1)} {text}"


def _calls(path: Path) -> list[Call]:
    """The collectives of a dump, without those between two ranks.

    Raises:
        ValueError: it is none. Whatever else a damaged pickle raises.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
    data = path.read_bytes()
    found = json.loads(data) if data.lstrip().startswith(b"{") else _PlainValues(io.BytesIO(data)).load()
    entries = found.get("entries") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list of entries")
    return [call for entry in entries if (call := _call(entry))]


def _call(entry: Any) -> Call | None:
    if not isinstance(entry, dict) or entry.get("is_p2p"):
        return None
    group, number = entry.get("process_group"), entry.get("collective_seq_id")
    name, state = entry.get("profiling_name"), entry.get("state")
    if not isinstance(number, int) or not isinstance(name, str) or not isinstance(state, str):
        return None
    group = group[0] if isinstance(group, list | tuple) and group else entry.get("pg_id")
    if not isinstance(group, str | int):
        return None
    return Call(printable(str(group))[:LONGEST_NAME], number, printable(name)[:LONGEST_NAME], state)
