"""What the compiled parser and its caller agree on: how it stops, where it writes what, and the keys that it knows."""

from typing import Any

import numpy as np

from gpu_trace_advisor.ingest.raw_events import ALIASES, INTEGERS, TEXTS

PADDING = 64

# How `parse_events` stops.
DONE, LIST_ENDS, CUT, ODD, FULL, POOL_FULL = range(6)

# Positions in the state.
POSITION, ROWS, N_INTEGERS, N_TEXTS, N_STRINGS, HEAP, N_REPAIRED, FIRST_REPAIRED = range(8)
STATE = 8

# The columns of the table of strings.
START, LENGTH, KIND, HASH = range(4)

# The columns of the rows that are written: dense ones, and (row, key, value) of the arguments.
PHASE, LABELS, TIMES, DENSE = 0, 1, 5, 7
ROW, KEY, CONTENT = range(3)

# What the bytes of a string in the pool are.
PLAIN, ESCAPED, VALUE = range(3)

SLACK = 64
"""Free entries that an event needs in each of the sparse columns at most."""

PH, NAME, CAT, PID, TID, TS, DUR, ARGS = range(8)
_EVENT_KEYS = {key: code for code, key in enumerate(("ph", "name", "cat", "pid", "tid", "ts", "dur", "args"))}
_ARGUMENT_KEYS = {key: code for code, key in enumerate(INTEGERS + TEXTS)}
_ARGUMENT_KEYS |= {old: _ARGUMENT_KEYS[new] for old, new in ALIASES.items()}
# A table of keys has so many slots; eight bytes of the key times the multiplier, shifted by 55, tell where to look first.
LONGEST_KEY = 40
SLOTS = 1 << 9
MULTIPLIER = 0x9E3779B97F4A7C15


def _key_table(keys: dict[str, int]) -> tuple[Any, Any, Any, Any]:
    """Slot -> number of the key or -1; and per key its code, length and bytes (zeros behind them)."""
    slots = np.full(SLOTS, -1, np.int32)
    codes, lengths = np.zeros(len(keys), np.int32), np.zeros(len(keys), np.int64)
    spelt = np.zeros(len(keys) * LONGEST_KEY + PADDING, np.uint8)
    for number, (key, code) in enumerate(keys.items()):
        data = key.encode()
        word = int.from_bytes(data[:8], "little")
        slot = (((word ^ len(data)) * MULTIPLIER) % (1 << 64)) >> 55
        while slots[slot] >= 0:
            slot = (slot + 1) % SLOTS
        slots[slot], codes[number], lengths[number] = number, code, len(data)
        spelt[number * LONGEST_KEY :][: len(data)] = list(data)
    return slots, codes, lengths, spelt


EVENT_TABLE = _key_table(_EVENT_KEYS)
ARGUMENT_TABLE = _key_table(_ARGUMENT_KEYS)
FIRST_TEXT = len(INTEGERS)
"""The code of the first argument that is a text; the integers come before."""
