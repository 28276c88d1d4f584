"""A torch.profiler (Kineto) recording: what its Chrome events mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpu_trace_advisor.columns.codes import counted, first_places, numbered, present
from gpu_trace_advisor.columns.intervals import ascending
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.assemble import Rows, assemble, rank_in_name
from gpu_trace_advisor.ingest.raw_events import MISSING, RawEvents
from gpu_trace_advisor.ingest.room import LEFT_OUT, LONGEST_VALUE
from gpu_trace_advisor.trace.model import (
    FIRST_OPERATION,
    LAST_OPERATION,
    NO_MEMORY,
    NONE,
    Bool,
    Device,
    Int8,
    Int32,
    Int64,
    Kind,
    Memory,
    Note,
    Process,
    Sparse,
    Thread,
    Trace,
    plausible,
)

# Every spelling since torch 1.8, in lower case.
CATEGORIES = {
    "cpu_op": Kind.OPERATOR, "operator": Kind.OPERATOR,
    "cuda_runtime": Kind.CALL, "cuda_driver": Kind.CALL, "runtime": Kind.CALL, "driver": Kind.CALL,
    "python_function": Kind.PYTHON, "python": Kind.PYTHON,
    "user_annotation": Kind.RANGE, "user": Kind.RANGE,
    "overhead": Kind.OVERHEAD,
    "kernel": Kind.KERNEL, "gpu_op": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY, "memcpy": Kind.COPY,
    "gpu_memset": Kind.SET, "memset": Kind.SET,
    "cuda_sync": Kind.SYNC,
    "gpu_user_annotation": Kind.PROJECTION,
    "cuda_event": Kind.EVENT,
    "cuda_profiler_range": Kind.EVENT,  # counters of CUPTI's range profiler
}  # fmt: skip
ACCELERATORS = ("mtia", "xpu", "hpu", "glow", "privateuse1", "npu")
CAPTURE = -2  # the span that the profiler recorded: no row
NO_STREAM = 4294967295  # what older CUPTI writes for "none"
RANK_LABELS = (
    re.compile(r"\[(?P<label>[^\]]*\d[^\]]*)\]\s*(?P<pid>-?\d+)"),
    re.compile(r"(?P<label>(?:rank|[tdpe]p)[ _-]?\d+\S*?)[\s:|/]+(?P<pid>-?\d+)", re.IGNORECASE),
)
DAMAGE = {
    "partial": "the file is cut short: what it holds is whole, what is missing is unknown",
    "dropped-event": "damaged events were left out",
    "repaired-event": "damaged events were repaired",
}


def to_trace(raw: RawEvents, path: Path) -> Trace:
    """The Trace of a Chrome trace's events. `path` gives the name, and the rank where the file itself does not.

    Raises UnreadableTrace when all its events are of another program.
    """
    notes = [Note(code, _damage(raw, code), count) for code, count in raw.notes.items()]
    _note_left_out(raw, notes)
    memory, names = _memory(raw), _thread_names(raw)
    used = _used(raw)
    kind = _kinds(raw, used)
    if len(used) and not len(memory.time_ns) and (kind == NONE).all():
        raise UnreadableTrace(f"{path}: {_of_another_program(raw, used)}")
    captured = _captured(raw, used[kind == CAPTURE])
    used, kind = used[kind >= 0], kind[kind >= 0]
    n = len(used)
    place = np.full(len(raw), NONE, np.int32)
    place[used] = np.arange(n, dtype=np.int32)
    # The raw columns are given back one by one: a large trace is not held twice.
    start, end = _taken(raw, "ts", used), _taken(raw, "dur", used)
    untimed = (start == MISSING) | (end == MISSING) | ((start == 0) & (end == 0))
    start[untimed] = end[untimed] = 0
    end += start
    name_code, pid, tid = _named(raw, used), _taken(raw, "pid", used), _taken(raw, "tid", used)
    integers, texts = _of_rows(raw.integers, place), _of_rows(raw.texts, place)
    correlation = _correlated(_dense(integers, "correlation", n), integers.get("External id"), kind)
    on_device = kind >= Kind.KERNEL
    device = _or_from_label(_dense(integers, "device", n), pid, raw.strings, on_device)
    stream = _or_from_label(_dense(integers, "stream", n), tid, raw.strings, on_device)
    stream[stream == NO_STREAM] = NONE
    processes, process = _processes(raw.strings, kind, pid, device, correlation, start, notes)
    threads, thread = _threads(raw.strings, names, kind, pid, tid, process, on_device)
    rows = Rows(
        kind=kind,
        start_ns=start,
        end_ns=end,
        untimed=untimed,
        name_code=name_code,
        process=process,
        thread=thread,
        device=device,
        stream=stream,
        correlation=correlation,
        bytes=_dense(integers, "bytes", n),
        names=raw.strings if raw.strings else [""],
        threads=threads,
        processes=processes,
        devices=_devices(raw.metadata),
        integers={
            k: v for k, v in integers.items() if k not in ("correlation", "device", "stream", "bytes") and len(v.rows)
        },
        texts={k: v for k, v in texts.items() if len(v.rows)},
        strings=raw.strings,
        memory=memory,
    )
    del start, end, untimed, kind, name_code, pid, tid, process, thread, device, stream, correlation, place
    del integers, texts
    return assemble(
        rows,
        name=path.name,
        format="kineto",
        producer=_producer(raw.metadata),
        metadata=raw.metadata,
        base_ns=_base(raw.metadata),
        rank=_rank(raw.metadata, path),
        captured_ns=captured,
        notes=notes,
    )


def _note_left_out(raw: RawEvents, notes: list[Note]) -> None:
    """Count the arguments that a reader did not keep, and leave nothing in their place."""
    if LEFT_OUT not in raw.strings:
        return
    code = raw.strings.index(LEFT_OUT)
    if count := sum(int((codes == code).sum()) for _, codes in raw.texts.values()):
        raw.strings[code] = ""
        text = f"lists among the arguments are left out: longer than {LONGEST_VALUE >> 20} MiB, or nested too deeply"
        notes.append(Note("left-out", text, count))


def _of_another_program(raw: RawEvents, used: Int64) -> str:
    codes, _, often = counted(raw.category[used])
    usual = [raw.strings[codes[i]] if codes[i] >= 0 else "none" for i in np.argsort(-often, kind="stable")[:3].tolist()]
    text = f"{len(used):,} event{'s' if len(used) > 1 else ''} of categories that torch.profiler does not write"
    return f"{text} ({', '.join(usual)}): a Chrome trace of another program? give a recording of torch.profiler or nsys"


def _used(raw: RawEvents) -> Int64:
    """Complete events (`ph` X), the only ones with a duration."""
    return np.flatnonzero(raw.phase == ord("X"))


def _per_code(codes: Int32, strings: list[str], value: Callable[[str], int], default: int = NONE) -> Int64:
    """`value(string)` for every row, worked out once for each distinct string."""
    found = present(codes)
    table = np.full(int(found[-1]) + 2 if len(found) else 1, default, np.int64)
    for code in found.tolist():
        if code >= 0:
            table[code + 1] = value(strings[code])
    return table[codes + 1]


def _category(text: str) -> int:
    text = text.lower()
    if text == "trace":
        return CAPTURE
    if text in CATEGORIES:
        return CATEGORIES[text]
    return Kind.ACCELERATOR if text.startswith(ACCELERATORS) else NONE


def _kinds(raw: RawEvents, used: Int64) -> Int8:
    return _per_code(raw.category[used], raw.strings, _category).astype(np.int8)


def _taken(raw: RawEvents, column: str, used: Int64) -> Any:
    """A column's used rows, taken out of the raw events."""
    values = getattr(raw, column)[used]
    setattr(raw, column, values[:0])
    return values


def _named(raw: RawEvents, used: Int64) -> Int32:
    """Name codes; a row without a name gets that of the empty string, added when needed."""
    codes: Int32 = _taken(raw, "name", used)
    if (codes < 0).any():
        if "" not in raw.strings:
            raw.strings.append("")
        codes[codes < 0] = raw.strings.index("")
    return codes


def _of_rows(columns: dict[str, tuple[Int64, Any]], place: Int32) -> dict[str, Sparse]:
    """The parts of sparse arguments, used up, that lie on used rows, by their new numbers; those of the same rows share
    them."""
    found: dict[str, Sparse] = {}
    last: Any = ()
    to, kept = place[:0], np.empty(0, np.int64)
    for key in tuple(columns):
        rows, values = columns.pop(key)
        if not np.array_equal(rows, last):
            last, to = rows, place[rows]
            kept = np.flatnonzero(to != NONE)
            to = to[kept]
        found[key] = Sparse(to, values[kept] if len(kept) < len(values) else values)
    return found


def _dense(integers: dict[str, Sparse], key: str, n: int) -> Int64:
    return integers[key].dense(n) if key in integers else np.full(n, NONE, np.int64)


def _correlated(correlation: Int64, external: Sparse | None, kind: Int8) -> Int64:
    """Correlations, with the `External id` in place of those that were not written.

    Recorders without correlations give a launch and its operation one id. It counts where exactly one call has it and no
    correlation is that number; which of several calls launched an operation is not told.
    """
    if external is None:
        return correlation
    of_row = external.dense(len(correlation))
    of_row[(correlation > 0) | (of_row <= 0)] = NONE
    operation = (kind >= FIRST_OPERATION) & (kind <= LAST_OPERATION)
    calls = np.flatnonzero((kind == Kind.CALL) & (of_row != NONE))
    lost = np.flatnonzero(operation & (of_row != NONE))
    if not len(calls) or not len(lost):
        return correlation
    ids = np.sort(of_row[calls])
    again = ids[1:] == ids[:-1]
    ids = ids[~np.append(again, False) & ~np.append(False, again)]
    ids = ids[~_holds(np.sort(correlation), ids)]
    for rows in (calls, lost):
        mine = rows[_holds(ids, of_row[rows])]
        correlation[mine] = of_row[mine]
    return correlation


def _holds(ascending: Int64, values: Int64) -> Bool:
    """[k] whether each of the values is among the ascending ones."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[place] == values, np.bool_)


def _or_from_label(column: Int64, label: Int32, strings: list[str], on_device: Bool) -> Int64:
    """Device or stream of device rows; where the argument is missing it is the number in the row's pid or tid."""
    column = np.where(on_device, column, NONE)
    missing = np.flatnonzero(on_device & (column == NONE))
    column[missing] = _per_code(label[missing], strings, _number_in)
    return column


def _number_in(text: str) -> int:
    found = re.search(r"(-?\d+)\s*$", text)
    return int(found[1]) if found and abs(int(found[1])) < 2**62 else NONE


def _rank_label(pid: str) -> str:
    """The rank's label in a pid of a merged file (`[TP00] 123` gives `TP00`), else nothing."""
    for pattern in RANK_LABELS:
        if found := pattern.fullmatch(pid.strip()):
            return found["label"]
    return ""


def _processes(
    strings: list[str], kind: Any, pid: Int32, device: Int64, correlation: Int64, start: Int64, notes: list[Note]
) -> tuple[list[Process], Int32]:
    """The scopes within which ids join, and each row's. One, unless the file merges several ranks."""
    labels = {int(c): _rank_label(strings[c]) for c in present(pid).tolist() if c >= 0}
    distinct = sorted({label for label in labels.values() if label})
    if len(distinct) > 1:
        numbers = {label: [int(n) for n in re.findall(r"\d{1,9}", label)] for label in distinct}
        distinct.sort(key=lambda label: (numbers[label], label))
        # Where the labels' numbers are no ranks (`DP0-TP01`, `TP0` beside `EP0`) the order of labels tells them apart.
        ranks = [numbers[label][0] for label in distinct if len(numbers[label]) == 1]
        if len(set(ranks)) < len(distinct):
            ranks = list(range(len(distinct)))
        place = {label: i for i, label in enumerate(distinct)}
        process = _per_code(pid, strings, lambda text: place.get(_rank_label(text), 0), 0).astype(np.int32)
        return [Process(None, rank, label) for rank, label in zip(ranks, distinct, strict=True)], process
    calls = np.flatnonzero((kind == Kind.CALL) & (correlation > 0))
    launchers = present(pid[calls])
    repeated = _launched_twice(pid[calls], correlation[calls]) if len(launchers) > 1 else launchers[:0]
    if not len(repeated):
        return [Process(None)], np.zeros(len(kind), np.int32)
    return _split_by_pid(strings, kind, pid, device, correlation, start, calls, launchers, repeated, notes)


def _launched_twice(pid: Int32, correlation: Int64) -> Int64:
    """Correlations with calls from more than one pid."""
    pairs = np.unique(np.stack([correlation, pid.astype(np.int64)]), axis=1) if len(pid) else np.empty((2, 0), np.int64)
    ids, times = np.unique(pairs[0], return_counts=True)
    return np.asarray(ids[times > 1], np.int64)


Launches = dict[int, list[tuple[int, int]]]
"""Correlation -> (start, scope) of the calls with it, in time order."""


def _split_by_pid(
    strings: list[str], kind: Any, pid: Int32, device: Int64, correlation: Int64, start: Int64, calls: Int64,
    launchers: Int64, repeated: Int64, notes: list[Note],
) -> tuple[list[Process], Int32]:  # fmt: skip
    """The same correlation launched from two pids: several ranks in one file, told apart by who launched what.

    On a device that is not one pid's an operation with an ambiguous id goes with the launch of the same turn in time order,
    or stays unlinked where the counts differ.
    """
    owner_of_pid = {int(code): i for i, code in enumerate(launchers.tolist())}
    process = np.array([owner_of_pid.get(int(code), 0) for code in pid.tolist()], np.int32)
    launched: Launches = {}
    in_order = calls[np.argsort(start[calls], kind="stable")]
    columns = (correlation, start, process)
    for c, begun, owner in zip(*(column[in_order].tolist() for column in columns), strict=True):
        launched.setdefault(c, []).append((begun, owner))
    operations = np.flatnonzero((kind >= FIRST_OPERATION) & (kind <= LAST_OPERATION))
    operations = operations[np.argsort(start[operations], kind="stable")]
    ambiguous = np.isin(correlation[operations], repeated)
    on = {ordinal: operations[device[operations] == ordinal] for ordinal in ascending(device[operations]).tolist()}
    owners = _owners({o: (correlation[rows].tolist(), start[rows].tolist()) for o, rows in on.items()}, launched)
    unlinked = 0
    for ordinal, here in on.items():
        if ordinal in owners:
            process[(kind >= Kind.KERNEL) & (device == ordinal)] = owners[ordinal]
            continue
        by_launch = [launched[c][0][1] if _clear(launched.get(c, [])) else NONE for c in correlation[here].tolist()]
        known = [owner for owner in by_launch if owner != NONE]
        usual = max(set(known), key=known.count) if known else 0
        process[here] = [usual if owner == NONE else owner for owner in by_launch]
        turns: dict[int, list[int]] = {}
        for row, c in zip(here.tolist(), correlation[here].tolist(), strict=True):
            if c in launched and not _clear(launched[c]):
                turns.setdefault(c, []).append(row)
        for c, rows in turns.items():
            if len(rows) == len(launched[c]):
                process[rows] = [owner for _, owner in launched[c]]
            else:
                correlation[rows] = NONE
                unlinked += len(rows)
    left = f", {unlinked} could not be and are not tied to a call" if unlinked else ""
    notes.append(
        Note(
            "duplicate-ids",
            f"{len(repeated)} correlation ids are launched from {len(launchers)} processes: the file merges several ranks; "
            f"{int(ambiguous.sum()) - unlinked} operations were told apart by device and time order{left}",
            len(repeated),
        )
    )
    return [Process(None, i, strings[code]) for i, code in enumerate(launchers.tolist())], process


MOSTLY = 0.9  # of a device's operations; the others were launched before the recording, under ids that another rank has


def _clear(calls: list[tuple[int, int]]) -> bool:
    """One pid made these calls, and there are some."""
    return len({owner for _, owner in calls}) == 1


def _owners(on: dict[int, tuple[list[int], list[int]]], launched: Launches) -> dict[int, int]:
    """The devices that are one pid's; `on` gives the correlation and start of each operation on a device.

    It is the one that launched nearly all operations with an unambiguous id. Without any of these, on a device that has
    fewer operations of an id than it is launched: the only one whose calls came before the operations, of those that are
    not known to use another device.
    """
    may: dict[int, set[int]] = {}
    for ordinal, (ids, starts) in on.items():
        often = Counter(c for c in ids if c in launched)
        clear = Counter[int]()
        before = Counter[int]()
        for c, begun in zip(ids, starts, strict=True):
            calls = launched.get(c, [])
            clear.update([calls[0][1]] if _clear(calls) else [])
            before.update({owner for at, owner in calls if at <= begun})
        shared = sum(n >= len(launched[c]) for c, n in often.items())
        votes, of = (clear, clear.total()) if clear else (before, often.total())
        if clear or 2 * shared < len(often):
            may[ordinal] = {owner for owner, n in votes.items() if n >= MOSTLY * of}
    owners: dict[int, int] = {}
    while only := [ordinal for ordinal, those in may.items() if len(those) == 1]:
        owners[only[0]] = found = may.pop(only[0]).pop()
        for those in may.values():
            those.difference_update({found} if len(those) > 1 else ())
    return owners


def _threads(
    strings: list[str], names: dict[tuple[int, int], str], kind: Any, pid: Int32, tid: Int32, process: Int32, on_device: Bool
) -> tuple[list[Thread], Int32]:  # fmt: skip
    """Host threads by (pid, tid). Overhead rows carry no thread."""
    loose = (kind == Kind.OVERHEAD) & (_per_code(pid, strings, lambda text: text.strip() == "-1", 0) != 0)
    host = ~on_device & ~loose
    pids, tids = present(pid[host]), present(tid[host])
    pairs = np.searchsorted(pids, pid).astype(np.int64) * len(tids) + np.searchsorted(tids, tid)
    pairs[~host] = NONE
    distinct, which = numbered(pairs)
    key = which.astype(np.int32)
    key[~host] = NONE
    key[host] -= int(len(distinct) > 0 and distinct[0] == NONE)  # the first one stands for those without a thread
    found, first = first_places(key)
    first = first[found != NONE]

    def text(code: int) -> str:
        return strings[code] if code >= 0 else ""

    threads = [
        Thread(int(process[row]), text(pid[row]), text(tid[row]), names.get((int(pid[row]), int(tid[row])), ""))
        for row in first.tolist()
    ]
    return threads, key


def _thread_names(raw: RawEvents) -> dict[tuple[int, int], str]:
    if "name" not in raw.texts:
        return {}
    rows, codes = raw.texts["name"]
    return {
        (int(raw.pid[row]), int(raw.tid[row])): raw.strings[code]
        for row, code in zip(rows.tolist(), codes.tolist(), strict=True)
        if raw.phase[row] == ord("M") and raw.name[row] >= 0 and raw.strings[raw.name[row]] == "thread_name"
    }


def _memory(raw: RawEvents) -> Memory:
    """`[memory]` instants; the CPU is device -1 whatever its id says."""
    if "[memory]" not in raw.strings:
        return NO_MEMORY
    rows = np.flatnonzero((raw.name == raw.strings.index("[memory]")) & (raw.ts != MISSING))
    if not len(rows):
        return NO_MEMORY
    rows = rows[np.argsort(raw.ts[rows], kind="stable")]

    def column(key: str) -> Int64:
        return _column(raw, key, rows)

    def known(key: str) -> Int64:
        values = column(key)
        return np.where((values < 0) | (values > LARGEST), NONE, values)

    kind, ordinal = column("Device Type"), column("Device Id")
    device = np.where((kind == 0) | (ordinal < 0), NONE, ordinal)
    size = column("Bytes")
    return Memory(
        raw.ts[rows], device, np.where(np.abs(size.astype(np.float64)) > LARGEST, 0, size),
        known("Total Allocated"), known("Total Reserved"),
    )  # fmt: skip


def _column(raw: RawEvents, key: str, rows: Int64) -> Int64:
    """[k] a sparse argument of these rows, MISSING where a row has none."""
    there, values = raw.integers.get(key, (rows[:0], rows[:0]))
    if not len(there):
        return np.full(len(rows), MISSING, np.int64)
    at = np.minimum(np.searchsorted(there, rows), len(there) - 1)
    return np.where(there[at] == rows, values[at], MISSING)


def _devices(metadata: dict[str, Any]) -> list[Device]:
    listed = metadata.get("deviceProperties")
    devices = []
    for i, properties in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(properties, dict):
            continue
        major, minor = _integer(properties.get("computeMajor")), _integer(properties.get("computeMinor"))
        ordinal = _integer(properties.get("id"))
        device = Device(
            ordinal=i if ordinal is None else ordinal,
            name=str(properties.get("name") or ""),
            sms=_integer(properties.get("numSms")),
            memory_bytes=_integer(properties.get("totalGlobalMem")),
            compute_capability=None if major is None or minor is None else (major, minor),
            properties=properties,
        )
        devices.append(plausible(device))
    return devices


LARGEST = 1 << 60  # bytes or ns: sums of a few larger ones would leave 64 bits


def _base(metadata: dict[str, Any]) -> int | None:
    """What times count from; nothing that would put them centuries away."""
    found = _integer(metadata.get("baseTimeNanoseconds"))
    return found if found is not None and abs(found) < 4 * LARGEST else None


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _producer(metadata: dict[str, Any]) -> str:
    versions = [
        f"{label} {metadata[key]}"
        for key, label in (
            ("cuda_runtime_version", "CUDA"), ("cupti_version", "CUPTI"),
            ("hip_runtime_version", "HIP"), ("roctracer_version", "roctracer"), ("rocprofiler-sdk_version", "rocprofiler"),
        )
        if isinstance(metadata.get(key), (int, str))
    ]  # fmt: skip
    return "torch.profiler" + (f" ({', '.join(versions)})" if versions else "")


def _rank(metadata: dict[str, Any], path: Path) -> int | None:
    info = metadata.get("distributedInfo")
    if isinstance(info, dict) and (rank := _integer(info.get("rank"))) is not None:
        return rank
    return rank_in_name(path.name)


def _captured(raw: RawEvents, rows: Int64) -> tuple[int, int] | None:
    """The span that the profiler says it recorded, in these rows."""
    rows = rows[(raw.ts[rows] != MISSING) & (raw.dur[rows] != MISSING) & (raw.dur[rows] > 0)]
    if not len(rows):
        return None
    return int(raw.ts[rows].min()), int((raw.ts[rows] + raw.dur[rows]).max())


def _damage(raw: RawEvents, code: str) -> str:
    where = raw.first_damage.get(code)
    return DAMAGE.get(code, code) + (f"; the first at {where}" if where else "")
