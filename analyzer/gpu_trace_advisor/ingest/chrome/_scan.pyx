# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Events of Chrome-trace JSON into columns, without the interpreter lock: the compiled part of `parallel_reader`.

It reads what JSON allows, and bare words (`inf`, `N/A`) for values as `repair.lenient` does; anything else is left to
`reader`, whose grammar is the one that counts. Text is looked at up to 32 bytes at a time, so PADDING zero bytes lie behind it.
"""

from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

import json

from gpu_trace_advisor.ingest.raw_events import ALIASES, INTEGERS, MISSING, TEXTS

cdef extern from "bytes32.h" nogil:
    uint32_t quotes32(const uint8_t *p)
    uint32_t spaces32(const uint8_t *p)
    int lowest_bit(uint32_t bits)
    uint64_t word8(const uint8_t *p)

ctypedef const uint8_t *Text

PADDING = 64
DONE, LIST_ENDS, ODD = range(3)
"""How `Scanner.scan` stops: behind the last event, behind the list of events, or at what is left to the other reader."""
PLAIN, ESCAPED, VALUE = range(3)
"""What the bytes of a string are: its text, its text with escapes, or a value of another kind as JSON."""

assert MISSING == INT64_MIN

cdef enum:
    DEEPEST = 40  # brackets inside each other
    LONGEST_KEY = 40
    LONGEST_NUMBER = 4000  # digits: what Python reads
    SLOTS = 1 << 9
    ARGUMENTS = 64

cdef enum How:
    SCAN_DONE, SCAN_LIST_ENDS, SCAN_ODD, SCAN_NO_MEMORY

cdef enum Kind:
    IS_PLAIN, IS_ESCAPED, IS_VALUE

cdef enum Key:
    PH, NAME, CAT, PID, TID, TS, DUR, ARGS

cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15


# ---- keys ------------------------------------------------------------------------------------------------------------

cdef struct KeyTable:
    int32_t slots[SLOTS]  # number of a key, -1 for none
    int32_t codes[ARGUMENTS]
    int32_t lengths[ARGUMENTS]
    uint8_t spelt[ARGUMENTS][LONGEST_KEY + 8]

cdef KeyTable EVENT_KEYS
cdef KeyTable ARGUMENT_KEYS
cdef int FIRST_TEXT = len(INTEGERS)
cdef int N_ARGUMENTS = len(INTEGERS) + len(TEXTS)


cdef inline uint64_t first_word(Text p, int64_t n) noexcept nogil:
    """The first up to 8 of n bytes, zeros behind them."""
    return word8(p) if n >= 8 else word8(p) & ((<uint64_t>1 << (8 * n)) - 1)


cdef inline int key_slot(Text p, int64_t n) noexcept nogil:
    return <int>(((first_word(p, n) ^ <uint64_t>n) * MULTIPLIER) >> 55)


cdef fill_keys(KeyTable *table, dict codes):
    """`codes`: key -> code."""
    cdef int slot
    assert len(codes) <= ARGUMENTS
    for slot in range(SLOTS):
        table.slots[slot] = -1
    for number, (key, code) in enumerate(codes.items()):
        data = key.encode()
        assert 0 < len(data) <= LONGEST_KEY
        table.codes[<int>number], table.lengths[<int>number] = code, len(data)
        for at, byte in enumerate(data):
            table.spelt[<int>number][<int>at] = byte
        slot = key_slot(table.spelt[<int>number], len(data))
        while table.slots[slot] >= 0:
            slot = (slot + 1) % SLOTS
        table.slots[slot] = number


_arguments = {key: code for code, key in enumerate(INTEGERS + TEXTS)}
fill_keys(&EVENT_KEYS, {"ph": PH, "name": NAME, "cat": CAT, "pid": PID, "tid": TID, "ts": TS, "dur": DUR, "args": ARGS})
fill_keys(&ARGUMENT_KEYS, _arguments | {old: _arguments[new] for old, new in ALIASES.items()})


cdef inline int find_key(KeyTable *table, Text p, int64_t n) noexcept nogil:
    """The code of a key, -1 when it is none of the table."""
    cdef int slot, number
    if n == 0 or n > LONGEST_KEY:
        return -1
    slot = key_slot(p, n)
    while True:
        number = table.slots[slot]
        if number < 0:
            return -1
        if table.lengths[number] == n and memcmp(table.spelt[number], p, n) == 0:
            return table.codes[number]
        slot = (slot + 1) & (SLOTS - 1)


# ---- tokens: each returns where the token ends, NULL where it is odd or the text ends in it ---------------------------

cdef inline Text skip_space(Text p) noexcept nogil:
    """The next byte that is no white space; the padding is none."""
    cdef uint32_t others
    if p[0] > 32:
        return p
    if p[0] == 32 and p[1] > 32:
        return p + 1
    while True:
        others = ~spaces32(p)
        if others:
            return p + lowest_bit(others)
        p += 32


cdef inline bint is_digit(uint8_t c) noexcept nogil:
    return c'0' <= c <= c'9'


cdef inline bint is_hex(uint8_t c) noexcept nogil:
    return is_digit(c) or c'a' <= (c | 32) <= c'f'


cdef inline Text string_end(Text p, Text end, bint *escaped) noexcept nogil:
    """The quote that closes the string whose first byte is at p."""
    cdef uint32_t mask
    cdef uint8_t c
    escaped[0] = False
    while p < end:
        mask = quotes32(p)
        if not mask:
            p += 32
            continue
        p += lowest_bit(mask)
        if p >= end:
            return NULL
        if p[0] == c'"':
            return p
        escaped[0] = True
        c = p[1]
        if c == c'u':
            if not (is_hex(p[2]) and is_hex(p[3]) and is_hex(p[4]) and is_hex(p[5])):
                return NULL
            p += 6
        elif c == c'"' or c == c'\\' or c == c'/' or c == c'b' or c == c'f' or c == c'n' or c == c'r' or c == c't':
            p += 2
        else:
            return NULL
    return NULL


cdef inline Text number_end(Text p) noexcept nogil:
    cdef Text first
    if p[0] == c'-':
        p += 1
    first = p
    if p[0] == c'0':
        p += 1
    elif is_digit(p[0]):
        while is_digit(p[0]):
            p += 1
        if p - first > LONGEST_NUMBER:
            return NULL
    else:
        return NULL
    if p[0] == c'.':
        p += 1
        if not is_digit(p[0]):
            return NULL
        while is_digit(p[0]):
            p += 1
    if p[0] | 32 == c'e':
        p += 1
        if p[0] == c'+' or p[0] == c'-':
            p += 1
        if not is_digit(p[0]):
            return NULL
        while is_digit(p[0]):
            p += 1
    return p


cdef inline Text literal_end(Text p) noexcept nogil:
    """Behind true, false or null."""
    if memcmp(p, b"true", 4) == 0 or memcmp(p, b"null", 4) == 0:
        return p + 4
    return p + 5 if memcmp(p, b"false", 5) == 0 else NULL


cdef inline Text word_end(Text p) noexcept nogil:
    """Behind a bare word, which `repair` reads as no value."""
    cdef Text first
    cdef int k
    if p[0] == c'+' or p[0] == c'-':
        p += 1
    first = p
    while c'a' <= (p[0] | 32) <= c'z' or c'.' <= p[0] <= c'/' or p[0] == c'_' or p[0] == c'#' or c'(' <= p[0] <= c')':
        p += 1
    if p == first or p - first > 24:
        return NULL
    for k in range(4):
        if is_digit(p[0]):
            p += 1
    return p


cdef Text nested_end(Text p, Text end) noexcept nogil:
    """Behind the list or object that opens at p."""
    cdef int depth = 0
    cdef uint64_t objects = 0  # bit per level: is it an object
    cdef bint escaped
    cdef uint8_t c
    while True:  # p is where a value begins
        c = p[0]
        if c == c'{' or c == c'[':
            if depth == DEEPEST:
                return NULL
            depth += 1
            objects = objects << 1 | (c == c'{')
            p = skip_space(p + 1)
            if c == c'{':
                if p[0] != c'}':
                    p = key_end(p, end)
                    if p == NULL:
                        return NULL
                    continue
            elif p[0] != c']':
                continue
        else:
            if c == c'"':
                p = string_end(p + 1, end, &escaped)
                if p != NULL:
                    p += 1
            elif c == c'-' or is_digit(c):
                p = number_end(p)
            else:
                p = literal_end(p)
            if p == NULL:
                return NULL
            p = skip_space(p)
        while True:  # behind a value, or in front of the end of an empty list
            c = p[0]
            if c == c',':
                p = skip_space(p + 1)
                if objects & 1:
                    p = key_end(p, end)
                    if p == NULL:
                        return NULL
                break
            if c != (c'}' if objects & 1 else c']'):
                return NULL
            p += 1
            depth -= 1
            objects >>= 1
            if depth == 0:
                return p
            p = skip_space(p)


cdef inline Text key_end(Text p, Text end) noexcept nogil:
    """Where the value of the key that opens at p begins."""
    cdef bint escaped
    if p[0] != c'"':
        return NULL
    p = string_end(p + 1, end, &escaped)
    if p == NULL:
        return NULL
    p = skip_space(p + 1)
    return skip_space(p + 1) if p[0] == c':' else NULL


cdef inline Text read_time(Text p, int64_t *ns) noexcept nogil:
    """The nanoseconds of the decimal microseconds at p, rounded half to even; NULL when it takes more than digits."""
    cdef bint negative = p[0] == c'-'
    cdef int64_t value = 0
    cdef int unit = 100
    cdef int rest = 0  # of the digits behind the third: 0 none, 1 below half, 2 half, 3 above half
    cdef int digit
    cdef Text first
    if negative:
        p += 1
    first = p
    while is_digit(p[0]):
        value = value * 10 + (p[0] - c'0')
        p += 1
        if p - first > 16:
            return NULL
    if p == first or (first[0] == c'0' and p - first > 1) or value >= <int64_t>9000000000000000:
        return NULL
    value *= 1000
    if p[0] == c'.':
        p += 1
        first = p
        while is_digit(p[0]):
            digit = p[0] - c'0'
            if unit > 0:
                value += digit * unit
                unit //= 10
            elif p - first == 3:
                rest = 0 if digit == 0 else 1 if digit < 5 else 2 if digit == 5 else 3
            elif digit > 0 and (rest == 0 or rest == 2):
                rest += 1
            p += 1
        if p == first or p - first > 40:
            return NULL
        if rest == 3 or (rest == 2 and value & 1):
            value += 1
    if p[0] | 32 == c'e':
        return NULL
    ns[0] = -value if negative else value
    return p


cdef inline Text read_integer(Text p, bint quoted, int64_t *number) noexcept nogil:
    """The whole number at p in 64 bits, MISSING when it is none or too large; NULL when it takes more than digits."""
    cdef bint negative = p[0] == c'-'
    cdef bint fits = True
    cdef uint64_t value = 0
    cdef int digit
    cdef Text first
    number[0] = INT64_MIN
    if negative:
        p += 1
    first = p
    while is_digit(p[0]):
        digit = p[0] - c'0'
        if value > <uint64_t>1844674407370955161 or (value == <uint64_t>1844674407370955161 and digit > 5):
            fits = False
        value = value * 10 + digit
        p += 1
    if p == first or p - first > 40 or (not quoted and first[0] == c'0' and p - first > 1):
        return NULL
    if negative and value > <uint64_t>1 << 63:
        fits = False
    if not quoted:
        if p[0] == c'.':
            p += 1
            first = p
            while is_digit(p[0]):
                if p[0] != c'0':
                    fits = False
                p += 1
            if p == first or p - first > 40:
                return NULL
        if p[0] | 32 == c'e':
            return NULL
    if fits:
        number[0] = <int64_t>(0 - value if negative else value)
    return p


# ---- columns ---------------------------------------------------------------------------------------------------------

cdef struct Column:
    char *data
    int64_t room  # bytes


cdef inline bint make_room(Column *column, int64_t size) noexcept nogil:
    """Room for `size` bytes in all; False when there is no memory."""
    cdef char *data
    if size <= column.room:
        return True
    size = max(2 * column.room, size, 4096)
    data = <char *>realloc(column.data, size)
    if data == NULL:
        return False
    column.data, column.room = data, size
    return True


cdef struct Sparse:
    Column rows  # int32
    Column values  # int64 of an integer, int32 of a text
    int64_t count


cdef struct String:
    int64_t start
    int64_t length
    uint64_t hash
    int64_t kind


cdef class Scanner:
    """One thread's parser: the rows of the text that it has parsed last, and the strings of all that it has parsed."""

    cdef readonly int64_t position
    """Where to go on in the text."""
    cdef readonly int64_t rows
    cdef readonly int64_t repaired
    """Rows with bare words for values."""
    cdef readonly int64_t first_repaired
    """Where in the text the first of them begins."""
    cdef readonly int64_t n_strings
    cdef Column phase
    cdef Column labels[4]
    cdef Column times[2]
    cdef Sparse arguments[ARGUMENTS]
    cdef Column heap, strings, slots
    cdef int64_t heap_size, n_slots
    cdef bint full

    def __dealloc__(self):
        cdef int k
        for column in range(4):
            free(self.labels[<int>column].data)
        for column in range(2):
            free(self.times[<int>column].data)
        for k in range(ARGUMENTS):
            free(self.arguments[k].rows.data)
            free(self.arguments[k].values.data)
        free(self.phase.data)
        free(self.heap.data)
        free(self.strings.data)
        free(self.slots.data)

    def begin(self):
        """Forget the rows; the strings stay."""
        cdef int k
        self.position = self.rows = self.repaired = self.first_repaired = 0
        for k in range(ARGUMENTS):
            self.arguments[k].count = 0

    def scan(self, const uint8_t[::1] text, int64_t end):
        """Parse the first `end` bytes of a text from `position` on; returns how it stopped."""
        if not 0 <= self.position <= end <= len(text) - PADDING:
            raise ValueError("the text needs padding")
        cdef How how
        with nogil:
            how = self.run(&text[0], end)
        if how == SCAN_NO_MEMORY:
            raise MemoryError
        return how

    def add(self, dense, dict integers, dict texts, list strings):
        """A row that the other reader has read: see `Events.take`."""
        cdef int64_t row = self.rows
        cdef int k
        if not self.room_for_row():
            raise MemoryError
        codes = [self.code_of(text) for text in strings]
        codes.append(-1)
        (<uint8_t *>self.phase.data)[row] = dense[0]
        for k in range(4):
            (<int32_t *>self.labels[k].data)[row] = codes[dense[1 + k]]
        for k in range(2):
            (<int64_t *>self.times[k].data)[row] = dense[5 + k]
        for key, value in integers.items():
            if not self.set_integer(_arguments[key], value):
                raise MemoryError
        for key, code in texts.items():
            if not self.set_text(_arguments[key], codes[code]):
                raise MemoryError
        self.rows += 1

    def go_on_at(self, int64_t position):
        """Leave out the text before a position."""
        self.position = position

    def dense(self):
        """Phases as bytes, then names, categories, pids and tids as int32, starts and durations as int64."""
        cdef int64_t n = self.rows
        found = [_bytes(self.phase.data, n)]
        for k in range(4):
            found.append(_bytes(self.labels[<int>k].data, 4 * n))
        for k in range(2):
            found.append(_bytes(self.times[<int>k].data, 8 * n))
        return found

    def sparse(self):
        """Argument -> its rows as int32 and its values, int64 of INTEGERS and int32 of TEXTS; of those that occur."""
        found = {}
        for code, name in enumerate(INTEGERS + TEXTS):
            entries = &self.arguments[<int>code]
            n = entries.count
            if n:
                size = (8 if code < FIRST_TEXT else 4) * n
                found[name] = _bytes(entries.rows.data, 4 * n), _bytes(entries.values.data, size)
        return found

    def all_strings(self):
        """Every string's bytes and kind, by code."""
        strings = <String *>self.strings.data
        found = []
        for k in range(self.n_strings):
            string = strings[<int64_t>k]
            found.append((_bytes(self.heap.data + string.start, string.length), string.kind))
        return found

    cdef int32_t code_of(self, str text) except -2:
        try:
            data, kind = text.encode(), IS_PLAIN
        except UnicodeEncodeError:  # half a character
            data, kind = json.dumps(text)[1:-1].encode(), IS_ESCAPED
        padded = data + bytes(8)  # hashing reads eight bytes at a time
        code = self.intern(<Text><const char *>padded, len(data), kind)
        if code < 0:
            raise MemoryError
        return code

    # -- the pool of strings

    cdef int32_t intern(self, Text p, int64_t n, Kind kind) noexcept nogil:
        """The code of n bytes as a string of a kind; -1 when there is no memory."""
        cdef uint64_t hash = <uint64_t>n * MULTIPLIER + <uint64_t>kind
        cdef int64_t k = 0
        cdef int64_t slot
        cdef int32_t code
        cdef String *string
        while k < n:
            hash = (hash ^ first_word(p + k, n - k)) * <uint64_t>0xD6E8FEB86659FD93
            hash ^= hash >> 32
            k += 8
        if 2 * self.n_strings >= self.n_slots and not self.more_slots():
            return -1
        slot = <int64_t>(hash >> 20) & (self.n_slots - 1)
        while True:
            code = (<int32_t *>self.slots.data)[slot]
            if code < 0:
                break
            string = &(<String *>self.strings.data)[code]
            if (
                string.hash == hash and string.length == n and string.kind == kind
                and memcmp(self.heap.data + string.start, p, n) == 0
            ):
                return code
            slot = (slot + 1) & (self.n_slots - 1)
        if not make_room(&self.strings, (self.n_strings + 1) * sizeof(String)):
            return -1
        if not make_room(&self.heap, self.heap_size + n):
            return -1
        code = <int32_t>self.n_strings
        string = &(<String *>self.strings.data)[code]
        string.start, string.length, string.hash, string.kind = self.heap_size, n, hash, kind
        memcpy(self.heap.data + self.heap_size, p, n)
        self.heap_size += n
        self.n_strings += 1
        (<int32_t *>self.slots.data)[slot] = code
        return code

    cdef bint more_slots(self) noexcept nogil:
        """Twice as many, the strings entered anew."""
        cdef int64_t size = max(2 * self.n_slots, 1 << 13)
        cdef int64_t k, slot
        cdef int32_t *slots
        if not make_room(&self.slots, size * sizeof(int32_t)):
            return False
        slots = <int32_t *>self.slots.data
        self.n_slots = size
        for k in range(size):
            slots[k] = -1
        for k in range(self.n_strings):
            slot = <int64_t>((<String *>self.strings.data)[k].hash >> 20) & (size - 1)
            while slots[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            slots[slot] = <int32_t>k
        return True

    # -- one row

    cdef bint room_for_row(self) noexcept nogil:
        cdef int64_t n = self.rows + 1
        cdef int k
        if n <= self.phase.room:  # all of them have room for as many rows
            return True
        if not make_room(&self.phase, n):
            return False
        for k in range(4):
            if not make_room(&self.labels[k], self.phase.room * sizeof(int32_t)):
                return False
        for k in range(2):
            if not make_room(&self.times[k], self.phase.room * sizeof(int64_t)):
                return False
        return True

    cdef inline bint set_integer(self, int key, int64_t value) noexcept nogil:
        """Write an argument of the row, over an earlier one of the same name; False when there is no memory."""
        cdef Sparse *entries = &self.arguments[key]
        cdef int64_t at = entries.count
        if at and (<int32_t *>entries.rows.data)[at - 1] == self.rows:
            at -= 1
        elif not make_room(&entries.rows, (at + 1) * sizeof(int32_t)):
            return False
        elif not make_room(&entries.values, (at + 1) * sizeof(int64_t)):
            return False
        entries.count = at
        if value != INT64_MIN:
            (<int32_t *>entries.rows.data)[at] = <int32_t>self.rows
            (<int64_t *>entries.values.data)[at] = value
            entries.count = at + 1
        return True

    cdef inline bint set_text(self, int key, int32_t code) noexcept nogil:
        """As `set_integer`; -1 for what is missing."""
        cdef Sparse *entries = &self.arguments[key]
        cdef int64_t at = entries.count
        if at and (<int32_t *>entries.rows.data)[at - 1] == self.rows:
            at -= 1
        elif not make_room(&entries.rows, (at + 1) * sizeof(int32_t)):
            return False
        elif not make_room(&entries.values, (at + 1) * sizeof(int32_t)):
            return False
        entries.count = at
        if code >= 0:
            (<int32_t *>entries.rows.data)[at] = <int32_t>self.rows
            (<int32_t *>entries.values.data)[at] = code
            entries.count = at + 1
        return True

    cdef void forget_row(self) noexcept nogil:
        """Take back what was written of a row that is not kept."""
        cdef int k
        cdef Sparse *entries
        for k in range(N_ARGUMENTS):
            entries = &self.arguments[k]
            if entries.count and (<int32_t *>entries.rows.data)[entries.count - 1] == self.rows:
                entries.count -= 1

    # -- events

    cdef How run(self, Text text, int64_t size) noexcept nogil:
        cdef Text p = text + self.position
        cdef Text end = text + size
        cdef Text after
        cdef bint bare
        self.full = False
        while True:
            p = skip_space(p)
            while p[0] == c',':
                p = skip_space(p + 1)
            self.position = min(p - text, size)
            if p >= end:
                return SCAN_DONE
            if p[0] == c']':
                self.position += 1
                return SCAN_LIST_ENDS
            if p[0] != c'{':
                return SCAN_ODD
            if not self.room_for_row():
                return SCAN_NO_MEMORY
            bare = False
            after = self.event(p, end, &bare)
            if after == NULL or after > end:
                self.forget_row()
                return SCAN_NO_MEMORY if self.full else SCAN_ODD
            if bare:
                if not self.repaired:
                    self.first_repaired = p - text
                self.repaired += 1
            self.rows += 1
            p = after

    cdef Text event(self, Text p, Text end, bint *bare) noexcept nogil:
        """Behind the event that opens at p, its row written."""
        cdef int64_t row = self.rows
        cdef int64_t ns
        cdef int key, k
        cdef bint escaped
        cdef bint had_args = False
        cdef Text quote
        cdef Text after
        (<uint8_t *>self.phase.data)[row] = 0
        for k in range(4):
            (<int32_t *>self.labels[k].data)[row] = -1
        for k in range(2):
            (<int64_t *>self.times[k].data)[row] = INT64_MIN
        p = skip_space(p + 1)
        if p[0] == c'}':
            return p + 1
        while True:
            if p[0] != c'"':
                return NULL
            quote = string_end(p + 1, end, &escaped)
            if quote == NULL or escaped:
                return NULL
            key = find_key(&EVENT_KEYS, p + 1, quote - p - 1)
            p = skip_space(quote + 1)
            if p[0] != c':':
                return NULL
            p = skip_space(p + 1)
            if key == ARGS:
                if had_args:
                    return NULL
                had_args = True
                after = self.args(p, end, bare) if p[0] == c'{' else self.skip_value(p, end, bare)
            elif key == TS or key == DUR:
                ns = INT64_MIN
                if p[0] == c'"':
                    after = read_time(p + 1, &ns)
                    if after != NULL:
                        after = after + 1 if after[0] == c'"' else NULL
                elif is_digit(p[0]) or (p[0] == c'-' and is_digit(p[1])):
                    after = read_time(p, &ns)
                else:
                    after = self.skip_value(p, end, bare)
                (<int64_t *>self.times[key - TS].data)[row] = ns
            elif key == PH:
                if p[0] == c'"' and p[1] == c'\\':
                    return NULL
                (<uint8_t *>self.phase.data)[row] = p[1] if p[0] == c'"' and p[1] < 128 and p[1] != c'"' else 0
                after = self.skip_value(p, end, bare)
            elif key >= 0:
                after = self.label(p, end, &(<int32_t *>self.labels[key - NAME].data)[row], bare)
            else:
                after = self.skip_value(p, end, bare)
            if after == NULL:
                return NULL
            p = skip_space(after)
            if p[0] == c',':
                p = skip_space(p + 1)
            elif p[0] == c'}':
                return p + 1
            else:
                return NULL

    cdef Text label(self, Text p, Text end, int32_t *code, bint *bare) noexcept nogil:
        """Behind the name, category, pid or tid at p, a string or a number."""
        cdef bint escaped = False
        cdef Text behind
        code[0] = -1
        if p[0] == c'"':
            behind = string_end(p + 1, end, &escaped)
            if behind == NULL:
                return NULL
            code[0] = self.intern(p + 1, behind - p - 1, IS_ESCAPED if escaped else IS_PLAIN)
            if code[0] < 0:
                self.full = True
                return NULL
            return behind + 1
        if is_digit(p[0]) or (p[0] == c'-' and c'1' <= p[1] <= c'9'):
            behind = number_end(p)
            if behind == NULL:
                return NULL
            code[0] = self.intern(p, behind - p, IS_PLAIN)
            if code[0] < 0:
                self.full = True
                return NULL
            return behind
        if p[0] == c'-' and p[1] == c'0':
            return NULL
        return self.skip_value(p, end, bare)

    cdef Text skip_value(self, Text p, Text end, bint *bare) noexcept nogil:
        """Behind the value at p."""
        cdef bint escaped
        cdef Text after
        cdef uint8_t c = p[0]
        if c == c'"':
            after = string_end(p + 1, end, &escaped)
            return NULL if after == NULL else after + 1
        if c == c'{' or c == c'[':
            return nested_end(p, end)
        if is_digit(c) or (c == c'-' and is_digit(p[1])):
            return number_end(p)
        after = literal_end(p)
        if after != NULL and (after[0] == c',' or after[0] == c'}' or after[0] <= 32):
            return after
        bare[0] = True
        return word_end(p)

    cdef Text args(self, Text p, Text end, bint *bare) noexcept nogil:
        """Behind the object of arguments that opens at p."""
        cdef int key
        cdef int64_t number
        cdef int32_t code
        cdef bint escaped, was_bare
        cdef Text quote
        cdef Text after
        p = skip_space(p + 1)
        if p[0] == c'}':
            return p + 1
        while True:
            if p[0] != c'"':
                return NULL
            quote = string_end(p + 1, end, &escaped)
            if quote == NULL or escaped:
                return NULL
            key = find_key(&ARGUMENT_KEYS, p + 1, quote - p - 1)
            p = skip_space(quote + 1)
            if p[0] != c':':
                return NULL
            p = skip_space(p + 1)
            if key < 0:
                after = self.skip_value(p, end, bare)
            elif key < FIRST_TEXT:
                number = INT64_MIN
                if p[0] == c'"':
                    quote = string_end(p + 1, end, &escaped)
                    if quote == NULL or escaped:
                        return NULL
                    after = read_integer(p + 1, True, &number)
                    if after != quote:
                        number = INT64_MIN
                    after = quote + 1
                elif is_digit(p[0]) or (p[0] == c'-' and is_digit(p[1])):
                    after = read_integer(p, False, &number)
                else:
                    after = self.skip_value(p, end, bare)
                if after != NULL and not self.set_integer(key, number):
                    self.full = True
                    return NULL
            else:
                code = -1
                if p[0] == c'"':
                    quote = string_end(p + 1, end, &escaped)
                    if quote == NULL:
                        return NULL
                    after = quote + 1
                    code = self.intern(p + 1, quote - p - 1, IS_ESCAPED if escaped else IS_PLAIN)
                    self.full = code < 0
                else:
                    was_bare = bare[0]
                    bare[0] = False
                    after = self.skip_value(p, end, bare)
                    if after != NULL and not bare[0] and p[0] != c'n':
                        code = self.intern(p, after - p, IS_VALUE)
                        self.full = code < 0
                    bare[0] |= was_bare
                if self.full or (after != NULL and not self.set_text(key, code)):
                    self.full = True
                    return NULL
            if after == NULL:
                return NULL
            p = skip_space(after)
            if p[0] == c',':
                p = skip_space(p + 1)
            elif p[0] == c'}':
                return p + 1
            else:
                return NULL


cdef bytes _bytes(const char *data, int64_t size):
    return data[:size] if size else b""
