"""The events of a Chrome trace as columns, as written and before any meaning is given to them.

Two parsers fill it: `chrome.py` (small files) and `chrome_fast.py` (large ones). `kineto.py` turns it into a Trace.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]

MISSING = np.iinfo(np.int64).min
"""A time or an integer that the event does not hold, or that is no number (`null`, `NaN`, `"N/A"`)."""

# Only these arguments are kept; every other value is skipped.
INTEGERS = (
    "correlation",
    "External id",
    "stream",
    "device",
    "bytes",
    "Sequence number",
    "registers per thread",
    "shared memory",
    "graph id",
    "graph node id",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "wait_on_cuda_event_id",
    "event_id",
    "Addr",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Device Id",
    "Device Type",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Rank",
    "Src Rank",
    "Dst Rank",
    "Seq",
    "inDevice",
    "fromDevice",
    "toDevice",
)
"""Arguments read as integers: a JSON integer, a quoted one (`"7"`), or a float without fraction. Else MISSING.
Values from 2^63 to 2^64-1 wrap to their two's complement (`Addr`); a value outside int64 and uint64 is MISSING."""

TEXTS = (
    "grid",
    "block",
    "kernel",
    "Input Dims",
    "Input type",
    "Input Strides",
    "Concrete Inputs",
    "Call stack",
    "Module Hierarchy",
    "Collective name",
    "dtype",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Comms Id",
    "finished",
    "cuda_sync_kind",
    "kind",
    "name",
    "labels",
)
"""Arguments kept as text: a JSON string decoded, any other value as its raw JSON text (`[[64, 3], []]`)."""

ALIASES = {"external id": "External id", "grid dim": "grid", "block dim": "block", "Input dims": "Input Dims"}
"""Older spellings of arguments, read as their present name."""


@dataclass
class RawEvents:
    """Chrome events in file order, one row each; n rows.

    A duplicate key counts by its last value. Times are exact: decimal microseconds in the text, rounded half to even to
    whole nanoseconds; JSON numbers with an exponent and quoted numbers (`"ts": "190.5"`) are read alike.
    """

    phase: UInt8
    """[n] the letter of `ph` as its ASCII code; 0 when missing."""
    name: Int32
    """[n] index into `strings`; -1 when missing. Likewise `category`."""
    category: Int32
    pid: Int32
    """[n] index into `strings`: the string, or the JSON text of the number; -1 when missing. Likewise `tid`."""
    tid: Int32
    ts: Int64
    """[n] nanoseconds, MISSING when absent or no number. Likewise `dur`."""
    dur: Int64
    integers: dict[str, tuple[Int64, Int64]]
    """argument -> (rows ascending, values); only arguments of INTEGERS that occur, MISSING values left out."""
    texts: dict[str, tuple[Int64, Int32]]
    """argument -> (rows ascending, index into `strings`); only arguments of TEXTS that occur."""
    strings: list[str]
    """Distinct strings, undecodable bytes replaced by U+FFFD."""
    metadata: dict[str, Any]
    """Every top-level key but `traceEvents`; empty for a bare list."""
    notes: Counter[str] = field(default_factory=Counter)
    """Damage: health code (`partial`, `dropped-event`, `repaired-event`) -> how many."""
    first_damage: dict[str, str] = field(default_factory=dict)
    """Health code -> where the first one was and the likely cause, for a person: `line 7, byte 812: …`."""

    def __len__(self) -> int:
        return len(self.ts)
