"""The compiled part of `chrome_fast`: events of a buffer of JSON text into columns, without the interpreter lock.

Every buffer has PADDING readable bytes behind its text, since text is looked at 32 bytes at a time. This module imports
numba; what calls its functions goes through `machine_code`, which keeps them compiled.
"""

import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from gpu_trace_advisor.ingest.chrome.scan_layout import (
    ARGS,
    ARGUMENT_TABLE,
    CONTENT,
    CUT,
    DONE,
    DUR,
    ESCAPED,
    EVENT_TABLE,
    FIRST_REPAIRED,
    FIRST_TEXT,
    FULL,
    HASH,
    HEAP,
    KEY,
    KIND,
    LABELS,
    LENGTH,
    LIST_ENDS,
    LONGEST_KEY,
    MULTIPLIER,
    N_INTEGERS,
    N_REPAIRED,
    N_STRINGS,
    N_TEXTS,
    NAME,
    ODD,
    PADDING,
    PH,
    PHASE,
    PLAIN,
    POOL_FULL,
    POSITION,
    ROW,
    ROWS,
    SLACK,
    SLOTS,
    START,
    TIMES,
    TS,
    VALUE,
)
from gpu_trace_advisor.ingest.chrome.scan_vectors import load8, lowest_bit, quotes, spaces, structure
from gpu_trace_advisor.ingest.raw_events import MISSING
from gpu_trace_advisor.runtime.machine_code import OPTIONS

_CHECKED = os.environ.get("NUMBA_BOUNDSCHECK") == "1"


def inlined(function: Callable[..., Any]) -> Any:
    """Compile as part of the functions that call it; cannot be called from Python, which halves the time to compile."""
    return numba.njit(**OPTIONS)(function)


@inlined
def _word(buf, i, n):  # type: ignore[no-untyped-def]
    """The first up to 8 of the n bytes at i, zeros behind them."""
    if _CHECKED and (i < 0 or i + 8 > buf.size):
        raise IndexError
    word = load8(buf, i)
    if n < 8:
        word &= (np.uint64(1) << np.uint64(8 * n)) - np.uint64(1)
    return word


@inlined
def _same(heap, at, buf, i, n):  # type: ignore[no-untyped-def]
    while n > 0:
        if _word(heap, at, n) != _word(buf, i, n):
            return False
        at += 8
        i += 8
        n -= 8
    return True


@inlined
def _find_key(buf, i, n, slots, codes, lengths, spelt):  # type: ignore[no-untyped-def]
    """The code of the key of n bytes at i, -1 when it is none of the table."""
    if n == 0 or n > LONGEST_KEY:
        return -1
    word = _word(buf, i, n)
    slot = np.int64(((word ^ np.uint64(n)) * np.uint64(MULTIPLIER)) >> np.uint64(55))
    while True:
        number = slots[slot]
        if number < 0:
            return -1
        if lengths[number] == n and _same(spelt, number * LONGEST_KEY, buf, i, n):
            return np.int64(codes[number])
        slot = (slot + 1) & (SLOTS - 1)


# ---- tokens: each returns where the token ends, or -1 when it is odd -------------------------------------------------


@inlined
def _skip_space(buf, i):  # type: ignore[no-untyped-def]
    """The next byte that is no white space; the padding is none."""
    if buf[i] > 32:
        return i
    if buf[i] == 32 and buf[i + 1] > 32:
        return i + 1
    while True:
        if _CHECKED and i + 32 > buf.size:
            raise IndexError
        others = spaces(buf, i) ^ 0xFFFFFFFF
        if others != 0:
            return i + lowest_bit(others)
        i += 32


@inlined
def _is_hex(c):  # type: ignore[no-untyped-def]
    return 48 <= c <= 57 or 97 <= (c | 32) <= 102


@inlined
def _string_end(buf, i, end):  # type: ignore[no-untyped-def]
    """(index of the quote that closes the string whose first byte is at i, whether it holds escapes).

    `end` when it does not close, -1 when an escape is invalid.
    """
    escaped = False
    while i < end:
        if _CHECKED and i + 32 > buf.size:
            raise IndexError
        mask = quotes(buf, i)
        if mask == 0:
            i += 32
            continue
        i += lowest_bit(mask)
        if i >= end:
            break
        if buf[i] == 34:
            return i, escaped
        escaped = True
        c = buf[i + 1]
        if c == 117:
            for k in range(2, 6):
                if not _is_hex(buf[i + k]):
                    return (-1 if i + 6 < end else end), True
            i += 6
        elif c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116:
            i += 2
        else:
            return (-1 if i + 2 < end else end), True
    return end, escaped


@inlined
def _nested_end(buf, i, end):  # type: ignore[no-untyped-def]
    """Behind the list or object that opens at i; `end` when it does not close, -1 when its brackets do not match."""
    depth = 0
    objects = np.uint64(0)  # bit per level: is it an object
    while i < end:
        if _CHECKED and i + 32 > buf.size:
            raise IndexError
        mask = structure(buf, i)
        step = 32
        while mask != 0:
            at = lowest_bit(mask)
            mask &= mask - 1
            if i + at >= end:
                return end
            c = buf[i + at]
            if c == 34:
                quote, _ = _string_end(buf, i + at + 1, end)
                if quote < 0 or quote >= end:
                    return quote
                if quote >= i + 32:
                    step = quote + 1 - i
                    break
                # Go on in the same block, behind the string.
                mask &= ~((np.int64(2) << (quote - i)) - 1)
            elif c == 123 or c == 91:
                if depth == 60:
                    return -1
                objects = (objects << np.uint64(1)) | np.uint64(c == 123)
                depth += 1
            else:
                if (objects & np.uint64(1)) != np.uint64(c == 125):
                    return -1
                objects >>= np.uint64(1)
                depth -= 1
                if depth == 0:
                    return i + at + 1
        i += step
    return end


@inlined
def _number_end(buf, i):  # type: ignore[no-untyped-def]
    """Behind the JSON number at i."""
    if buf[i] == 45:
        i += 1
    c = buf[i]
    if c == 48:
        i += 1
    elif 49 <= c <= 57:
        while 48 <= buf[i] <= 57:
            i += 1
    else:
        return -1
    if buf[i] == 46:
        i += 1
        if not 48 <= buf[i] <= 57:
            return -1
        while 48 <= buf[i] <= 57:
            i += 1
    if buf[i] | 32 == 101:
        i += 1
        if buf[i] == 43 or buf[i] == 45:
            i += 1
        if not 48 <= buf[i] <= 57:
            return -1
        while 48 <= buf[i] <= 57:
            i += 1
    return i


@inlined
def _word_end(buf, i):  # type: ignore[no-untyped-def]
    """(behind the bare word at i, whether it is none of true, false and null)."""
    start = i
    if buf[i] == 43 or buf[i] == 45:
        i += 1
    first = i
    while 97 <= buf[i] | 32 <= 122 or 46 <= buf[i] <= 47 or buf[i] == 95 or buf[i] == 35 or 40 <= buf[i] <= 41:
        i += 1
    n = i - start
    if i == first or i - first > 24:
        return -1, True
    if n == 4:
        w = _word(buf, start, 4)
        if w == np.uint64(0x6C6C756E) or w == np.uint64(0x65757274):
            return i, False
    elif n == 5 and _word(buf, start, 5) == np.uint64(0x65736C6166):
        return i, False
    for _ in range(4):
        if 48 <= buf[i] <= 57:
            i += 1
    return i, True


@inlined
def _skip_value(buf, i, end):  # type: ignore[no-untyped-def]
    """(behind the value at i, whether it is a bare word that JSON does not know); `end` when the text ends in it."""
    c = buf[i]
    if c == 34:
        quote, _ = _string_end(buf, i + 1, end)
        return (quote + 1 if 0 <= quote < end else quote), False
    if c == 123 or c == 91:
        return _nested_end(buf, i, end), False
    after = _number_end(buf, i)
    if after >= 0:
        return after, False
    return _word_end(buf, i)


@inlined
def _time(buf, i):  # type: ignore[no-untyped-def]
    """(nanoseconds of the decimal microseconds at i, behind them); -1 behind when it takes more than digits."""
    negative = buf[i] == 45
    if negative:
        i += 1
    first = i
    value = np.int64(0)
    while 48 <= buf[i] <= 57:
        value = value * 10 + (np.int64(buf[i]) - 48)
        i += 1
        if i - first > 16:
            return value, -1
    if i == first or (buf[first] == 48 and i - first > 1) or value >= 9_000_000_000_000_000:
        return value, -1
    value *= 1000
    if buf[i] == 46:
        i += 1
        first = i
        unit = np.int64(100)
        rest = 0  # of the digits behind the third: 0 none, 1 below half, 2 half, 3 above half
        while 48 <= buf[i] <= 57:
            digit = np.int64(buf[i]) - 48
            if unit > 0:
                value += digit * unit
                unit //= 10
            elif i - first == 3:
                rest = 0 if digit == 0 else 1 if digit < 5 else 2 if digit == 5 else 3
            elif digit > 0 and (rest == 0 or rest == 2):
                rest += 1
            i += 1
        if i == first:
            return value, -1
        if rest == 3 or (rest == 2 and value & 1):
            value += 1
    if buf[i] | 32 == 101:
        return value, -1
    return (-value if negative else value), i


@inlined
def _integer(buf, i, quoted):  # type: ignore[no-untyped-def]
    """(the whole number at i in 64 bits, behind it); MISSING when it is none or too large, -1 behind when odd."""
    negative = buf[i] == 45
    if negative:
        i += 1
    first = i
    value = np.uint64(0)
    fits = True
    while 48 <= buf[i] <= 57:
        digit = np.uint64(buf[i] - 48)
        if value > np.uint64(1844674407370955161) or (value == np.uint64(1844674407370955161) and digit > np.uint64(5)):
            fits = False
        value = value * np.uint64(10) + digit
        i += 1
    if i == first or (not quoted and buf[first] == 48 and i - first > 1):
        return np.int64(MISSING), -1
    if negative and value > np.uint64(1 << 63):
        fits = False
    if not quoted:
        if buf[i] == 46:
            i += 1
            first = i
            while 48 <= buf[i] <= 57:
                if buf[i] != 48:
                    fits = False
                i += 1
            if i == first:
                return np.int64(MISSING), -1
        if buf[i] | 32 == 101:
            return np.int64(MISSING), -1
    if not fits:
        return np.int64(MISSING), i
    number = np.int64(value)
    return (-number if negative else number), i


# ---- the pool of strings ---------------------------------------------------------------------------------------------


@inlined
def _hash(buf, i, n, kind):  # type: ignore[no-untyped-def]
    h = np.uint64(n) * np.uint64(MULTIPLIER) + np.uint64(kind)
    while n > 0:
        h = (h ^ _word(buf, i, n)) * np.uint64(0xD6E8FEB86659FD93)
        h ^= h >> np.uint64(32)
        i += 8
        n -= 8
    return h


@inlined
def _intern(buf, i, j, kind, heap, strings, slots, state):  # type: ignore[no-untyped-def]
    """The code of the bytes from i to j as a string of a kind; -2 when the pool is full."""
    n = j - i
    h = np.int64(_hash(buf, i, n, kind))
    mask = slots.size - 1
    slot = (h >> 20) & mask
    while True:
        code = np.int64(slots[slot])
        if code < 0:
            break
        if (
            strings[code, HASH] == h
            and strings[code, LENGTH] == n
            and strings[code, KIND] == kind
            and _same(heap, strings[code, START], buf, i, n)
        ):
            return code
        slot = (slot + 1) & mask
    new = state[N_STRINGS]
    at = state[HEAP]
    if new >= strings.shape[0] or at + n + PADDING > heap.size:
        return np.int64(-2)
    for k in range(n):
        heap[at + k] = buf[i + k]
    strings[new, START] = at
    strings[new, LENGTH] = n
    strings[new, KIND] = kind
    strings[new, HASH] = h
    slots[slot] = new
    state[N_STRINGS] = new + 1
    state[HEAP] = at + n
    return new


def intern(buf, i, j, kind, heap, strings, slots, state):  # type: ignore[no-untyped-def]
    """`_intern`, for Python."""
    return _intern(buf, i, j, kind, heap, strings, slots, state)


def refill(strings, count, slots):  # type: ignore[no-untyped-def]
    """Enter the first `count` strings into an empty table."""
    mask = slots.size - 1
    for code in range(count):
        slot = (strings[code, HASH] >> 20) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = code


# ---- events ----------------------------------------------------------------------------------------------------------

_OK, _STOP_ODD, _STOP_CUT, _STOP_POOL = range(4)
_UNREAD = -3  # where a value ends, before that is known


@inlined
def _label(buf, i, end, heap, strings, slots, state):  # type: ignore[no-untyped-def]
    """(code of the string or number at i, behind it, how it went, whether it is a bare word)."""
    c = buf[i]
    if c == 45 and buf[i + 1] == 48:
        return np.int64(-1), i, _STOP_ODD, False
    first, behind, after, kind = i, np.int64(-1), np.int64(_UNREAD), np.int64(PLAIN)
    bare = False
    if c == 34:
        behind, escaped = _string_end(buf, i + 1, end)
        first, after = i + 1, (behind + 1 if 0 <= behind < end else behind)
        if escaped:
            kind = np.int64(ESCAPED)
    elif c != 123 and c != 91:
        behind = _number_end(buf, i)
        if behind >= 0:
            after = behind
    if after == _UNREAD:
        after, bare = _skip_value(buf, i, end)
    if after < 0:
        return np.int64(-1), i, _STOP_ODD, False
    if after >= end:
        return np.int64(-1), after, _STOP_CUT, bare
    code = np.int64(-1)
    if behind >= 0:
        code = _intern(buf, first, behind, kind, heap, strings, slots, state)
    return code, after, (_STOP_POOL if code == -2 else _OK), bare


@inlined
def _enter(entries, row, key, content, missing, first, last, state, counter):  # type: ignore[no-untyped-def]
    """Write an argument of a row, over an earlier one of the same name; `first` is the first entry of the row."""
    at = last[key]
    if first <= at < state[counter] and entries[at, KEY] == key:
        entries[at, CONTENT] = content
    elif content != missing:
        at = state[counter]
        entries[at, ROW] = row
        entries[at, KEY] = key
        entries[at, CONTENT] = content
        last[key] = at
        state[counter] = at + 1


@inlined
def _arguments(buf, i, end, row, integers, texts, last, heap, strings, slots, state):  # type: ignore[no-untyped-def]
    """(behind the object of arguments that opens at i, how it went, whether it was repaired)."""
    repaired = False
    first_integer, first_text = state[N_INTEGERS], state[N_TEXTS]
    i = _skip_space(buf, i + 1)
    while True:
        while buf[i] == 44:
            repaired = True
            i = _skip_space(buf, i + 1)
        c = buf[i]
        if c == 125:
            return i + 1, _OK, repaired
        if c != 34:
            return i, _STOP_ODD, repaired
        quote, escaped = _string_end(buf, i + 1, end)
        if quote < 0 or escaped:
            return i, _STOP_ODD, repaired
        if quote >= end:
            return i, _STOP_CUT, repaired
        key = _find_key(
            buf, i + 1, quote - i - 1, ARGUMENT_TABLE[0], ARGUMENT_TABLE[1], ARGUMENT_TABLE[2], ARGUMENT_TABLE[3]
        )
        i = _skip_space(buf, quote + 1)
        if buf[i] != 58:
            return i, _STOP_ODD, repaired
        i = _skip_space(buf, i + 1)
        c = buf[i]
        after, number, bare = np.int64(_UNREAD), np.int64(MISSING), False
        quote, escaped = np.int64(-1), False
        if c == 34:
            quote, escaped = _string_end(buf, i + 1, end)
            after = quote + 1 if 0 <= quote < end else quote
        if 0 <= key < FIRST_TEXT and (c == 34 or c == 45 or 48 <= c <= 57):
            if escaped:
                return i, _STOP_ODD, repaired
            number, behind = _integer(buf, i + 1 if c == 34 else i, c == 34)
            if c == 34:
                if behind != quote:
                    number = np.int64(MISSING)
            elif behind >= 0:
                after = behind
            elif c != 45 or 48 <= buf[i + 1] <= 57:
                return i, _STOP_ODD, repaired
        if after == _UNREAD:
            after, bare = _skip_value(buf, i, end)
        if after < 0:
            return i, _STOP_ODD, repaired
        if after >= end:
            return i, _STOP_CUT, repaired
        if 0 <= key < FIRST_TEXT:
            _enter(integers, row, key, number, MISSING, first_integer, last, state, N_INTEGERS)
        elif key >= 0:
            code = np.int64(-1)
            # null is left out, like an argument that is not there
            if not bare and c != 110:
                start, behind, kind = i, after, np.int64(VALUE)
                if c == 34:
                    start, behind, kind = i + 1, quote, np.int64(ESCAPED if escaped else PLAIN)
                code = _intern(buf, start, behind, kind, heap, strings, slots, state)
                if code == -2:
                    return i, _STOP_POOL, repaired
            _enter(texts, row, key, code, -1, first_text, last, state, N_TEXTS)
        repaired |= bare
        i = _skip_space(buf, after)
        c = buf[i]
        if c == 44:
            i = _skip_space(buf, i + 1)
            if buf[i] == 125:
                repaired = True
        elif c != 125:
            return i, _STOP_ODD, repaired


@inlined
def _event(buf, i, end, row, dense, integers, texts, last, heap, strings, slots, state):  # type: ignore[no-untyped-def]
    """(behind the event that opens at i, how it went, whether it was repaired)."""
    repaired = False
    had_args = False
    dense[row, PHASE] = 0
    for k in range(4):
        dense[row, LABELS + k] = -1
    dense[row, TIMES] = MISSING
    dense[row, TIMES + 1] = MISSING
    i = _skip_space(buf, i + 1)
    while True:
        while buf[i] == 44:
            repaired = True
            i = _skip_space(buf, i + 1)
        c = buf[i]
        if c == 125:
            return i + 1, _OK, repaired
        if c != 34:
            return i, _STOP_ODD, repaired
        quote, escaped = _string_end(buf, i + 1, end)
        if quote < 0 or escaped:
            return i, _STOP_ODD, repaired
        if quote >= end:
            return i, _STOP_CUT, repaired
        key = _find_key(buf, i + 1, quote - i - 1, EVENT_TABLE[0], EVENT_TABLE[1], EVENT_TABLE[2], EVENT_TABLE[3])
        i = _skip_space(buf, quote + 1)
        if buf[i] != 58:
            return i, _STOP_ODD, repaired
        i = _skip_space(buf, i + 1)
        c = buf[i]
        after, bare = np.int64(_UNREAD), False
        if key == ARGS:
            if had_args:
                return i, _STOP_ODD, repaired
            had_args = True
            if c == 123:
                after, how, mended = _arguments(buf, i, end, row, integers, texts, last, heap, strings, slots, state)
                if how != _OK:
                    return after, how, repaired
                repaired |= mended
        elif TS <= key <= DUR:
            value = np.int64(MISSING)
            if c == 34 or c == 45 or 48 <= c <= 57:
                value, behind = _time(buf, i + 1 if c == 34 else i)
                if c == 34 and behind >= 0:
                    if buf[behind] != 34:
                        return i, _STOP_ODD, repaired
                    after = behind + 1
                elif behind >= 0:
                    after = behind
                elif c != 45:
                    return i, _STOP_ODD, repaired
                else:
                    # A word like -inf is skipped; a number that is not for _time is no word, and odd.
                    value = np.int64(MISSING)
                    if 48 <= buf[i + 1] <= 57:
                        return i, _STOP_ODD, repaired
            dense[row, TIMES + key - TS] = value
        elif key == PH:
            if c == 34 and buf[i + 1] == 92:
                return i, _STOP_ODD, repaired
            dense[row, PHASE] = buf[i + 1] if c == 34 and buf[i + 1] < 128 and buf[i + 1] != 34 else 0
        elif key >= 0:
            code, after, how, bare = _label(buf, i, end, heap, strings, slots, state)
            if how != _OK:
                return after, how, repaired
            dense[row, LABELS + key - NAME] = code
        if after == _UNREAD:
            after, bare = _skip_value(buf, i, end)
        if after < 0:
            return i, _STOP_ODD, repaired
        if after >= end:
            return i, _STOP_CUT, repaired
        repaired |= bare
        i = _skip_space(buf, after)
        c = buf[i]
        if c == 44:
            i = _skip_space(buf, i + 1)
            if buf[i] == 125:
                repaired = True
        elif c != 125:
            return i, _STOP_ODD, repaired


def parse_events(  # type: ignore[no-untyped-def]
    buf,
    end,
    dense,
    integers,
    texts,
    last,
    heap,
    strings,
    slots,
    state,
):
    """Read events from state[POSITION] on; returns how it stopped, with state[POSITION] where to go on.

    DONE: the text ended behind an event. LIST_ENDS: the list of events ended. CUT: the text ended in the event at the
    position. ODD: what stands at the position needs the slow parser. FULL, POOL_FULL: no room for another event.
    """
    i = state[POSITION]
    while True:
        i = _skip_space(buf, i)
        while buf[i] == 44:
            i = _skip_space(buf, i + 1)
        state[POSITION] = i
        if i >= end:
            state[POSITION] = end
            return DONE
        c = buf[i]
        if c == 93:
            state[POSITION] = i + 1
            return LIST_ENDS
        if c != 123:
            return ODD
        row = state[ROWS]
        n_integers, n_texts = state[N_INTEGERS], state[N_TEXTS]
        if row >= dense.shape[0] or n_integers + SLACK > integers.shape[0] or n_texts + SLACK > texts.shape[0]:
            return FULL
        after, how, repaired = _event(
            buf,
            i,
            end,
            row,
            dense,
            integers,
            texts,
            last,
            heap,
            strings,
            slots,
            state,
        )
        if how != _OK or after > end:
            state[N_INTEGERS], state[N_TEXTS] = n_integers, n_texts
            if how == _STOP_POOL:
                return POOL_FULL
            return CUT if how == _STOP_CUT or after >= end else ODD
        if repaired:
            if state[N_REPAIRED] == 0:
                state[FIRST_REPAIRED] = i
            state[N_REPAIRED] += 1
        state[ROWS] = row + 1
        i = after


def group(entries, count, first, counts, at, rows_out, values_out):  # type: ignore[no-untyped-def]
    """Sort entries by key, keeping their order; counts[k] becomes how many there are of key first + k.

    `counts` holds zeros before, and `at`, which is as long, a zero in front.
    """
    for k in range(count):
        counts[entries[k, KEY] - first] += 1
    for k in range(1, counts.size):
        at[k] = at[k - 1] + counts[k - 1]
    for k in range(count):
        key = entries[k, KEY] - first
        rows_out[at[key]] = entries[k, ROW]
        values_out[at[key]] = entries[k, CONTENT]
        at[key] += 1
