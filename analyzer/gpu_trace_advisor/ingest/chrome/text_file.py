"""The text of a trace file as a stream of UTF-8 bytes: plain, gzipped or UTF-16 on disk."""

import codecs
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from isal import igzip_lib, isal_zlib

from gpu_trace_advisor.errors import UnreadableTrace

GZIP_MAGIC = b"\x1f\x8b"
_GzipError: Any = igzip_lib.IsalError
MOST_TIMES = 200
"""What gzip data may unpack to, as a multiple of its size: traces reach 10 to 60, what is made to fill memories 1,000."""
LARGE = 64 << 20
"""Bytes of text that may come of however little."""
_READ = 1 << 20
"""Bytes read at a time."""
_PACKED, _UNPACKED = 1 << 16, 1 << 18
"""Bytes of gzip data, and of what comes out, at a time: so few that they stay in the processor's cache."""
_BOMS = (  # the longer first: UTF-32 LE begins like UTF-16 LE
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class TextFile:
    """An open trace file; a context manager.

    Raises UnreadableTrace when the file cannot be opened or read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.damage = ""
        """Why the text ends early; empty while it does not. Known once the text has been read."""
        self.done = 0
        """Bytes of the file on disk read so far, of `size`."""
        try:
            self.size = self.path.stat().st_size
            self._file = self.path.open("rb")
        except OSError as error:
            raise UnreadableTrace(_cannot_open(self.path, error)) from None
        self._blocks: Iterator[bytes] | None = None
        self._held = memoryview(b"")
        self._packed: BufferedReader | None = None
        self._unpacked: Any = None
        self._direct = False
        """Whether the rest of the text can be read into a buffer as it is."""
        self._given = 0
        """Bytes of unpacked data read so far, the byte order mark among them."""
        self.gzipped = self._file.peek(2)[:2] == GZIP_MAGIC

    def __enter__(self) -> "TextFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._packed:
            self._packed.close()

    def blocks(self) -> Iterator[bytes]:
        """The text once, in blocks of any length: UTF-8 without its byte order mark.

        Bytes that are no UTF-8 pass as they are; what is no UTF-16 becomes U+FFFD.
        """
        raw = self._gunzip() if self.gzipped else self._read()
        first = next(raw, b"")
        while first and len(first) < 4 and (more := next(raw, b"")):
            first += more
        encoding, skip = _encoding(first)
        if encoding == "utf-8":
            self._given = len(first)
            self._direct = not self.damage
            yield first[skip:]
            for block in raw:
                self._given += len(block)
                self._refuse_bomb()
                yield block
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield decoder.decode(first[skip:]).encode()
        for block in raw:
            yield decoder.decode(block).encode()
        yield decoder.decode(b"", final=True).encode()

    def fill(self, view: memoryview) -> int:
        """Write the next bytes of `blocks` to a buffer; how many, 0 only at the end of the text. Not to be mixed with it."""
        while not self._held:
            if self._direct and (size := self._read_into(view)) is not None:
                return size
            self._blocks = self._blocks or self.blocks()
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._held = memoryview(block)
        size = min(len(view), len(self._held))
        view[:size] = self._held[:size]
        self._held = self._held[size:]
        return size

    def take(self, size: int, progress: Callable[[int, int], None] | None = None) -> bytearray:
        """The text up to `size` bytes or a little more, all of it where it is shorter; what has been read comes once more
        in `fill` when it is given to `put_back`."""
        text = bytearray()
        self._blocks = self.blocks()
        while len(text) < size and (block := next(self._blocks, None)) is not None:
            text += block
            if progress:
                progress(self.done, self.size)
        return text

    def put_back(self, text: bytearray) -> None:
        """See `take`."""
        self._held = memoryview(text)

    def _read_into(self, view: memoryview) -> int | None:
        """As `fill`; None when the gzip data is damaged, or followed by something else: then `_blocks` goes on."""
        if not self.gzipped:
            try:
                size = self._file.readinto(view)
            except OSError as error:
                raise UnreadableTrace(_cannot_open(self.path, error)) from None
            self.done += size
            return size
        try:
            size = self._unpack_into(view)
        except (OSError, EOFError, _GzipError):
            self._direct, self._blocks = False, self._after(self._given)
            return None
        self._given += size
        self._refuse_bomb()
        return size

    def _refuse_bomb(self) -> None:
        """A few bytes may unpack to any number: stop before they fill the memory."""
        if self.gzipped and self._given > max(MOST_TIMES * self.size, LARGE):
            raise UnreadableTrace(
                f"{self.path}: unpacks to more than {MOST_TIMES} times its size, which no trace does; if it is one, unpack it "
                "with gunzip first"
            )

    def _unpack_into(self, view: memoryview) -> int:
        """The data behind what has been given."""
        if self._packed is None:
            from isal import igzip

            unpack: Any = igzip.IGzipFile  # which has no types
            self._packed = self.path.open("rb")
            self._unpacked = unpack(fileobj=self._packed)
            left = self._given
            while left and (size := self._unpacked.readinto(view[:left])):
                left -= size
        given: int = self._unpacked.readinto(view)
        self.done = self._packed.tell()
        return given

    def _after(self, given: int) -> Iterator[bytes]:
        """The blocks of unpacked data behind so many bytes."""
        self._file.seek(0)
        self.done = 0
        for block in self._gunzip():
            if given < len(block):
                yield block[given:]
            given = max(given - len(block), 0)

    def _read(self) -> Iterator[bytes]:
        while True:
            try:
                block = self._file.read(_PACKED if self.gzipped else _READ)
            except OSError as error:
                raise UnreadableTrace(_cannot_open(self.path, error)) from None
            if not block:
                return
            self.done += len(block)
            yield block

    def _gunzip(self) -> Iterator[bytes]:
        """Every gzip member one after the other; whatever follows the last one is ignored."""
        raw = self._read()
        pending = b""
        while True:
            while len(pending) < 2 and (more := next(raw, b"")):
                pending += more
            if pending[:2] != GZIP_MAGIC:
                return
            member = isal_zlib.decompressobj(wbits=31)
            while not member.eof:
                try:
                    text = member.decompress(pending, _UNPACKED)
                except _GzipError as error:
                    self.damage = f"the gzip data is damaged ({error})"
                    return
                if text:
                    yield text
                pending = member.unconsumed_tail
                if not pending and not member.eof and len(text) < _UNPACKED:
                    pending = next(raw, b"")
                    if not pending:
                        self.damage = "the gzip data ends early"
                        return
            pending = member.unused_data


class HeldText:
    """The text of a file that was read already, to be read once more like the file."""

    def __init__(self, text: bytearray, path: Path | str) -> None:
        self.path = Path(path)
        self.damage = ""
        self.done = self.size = len(text)
        self._left = memoryview(text)

    def fill(self, view: memoryview) -> int:
        """See `TextFile.fill`."""
        size = min(len(view), len(self._left))
        view[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _encoding(start: bytes) -> tuple[str, int]:
    """The encoding that the first bytes show, and the length of the byte order mark."""
    for bom, encoding in _BOMS:
        if start.startswith(bom):
            return encoding, len(bom)
    zeros = [byte == 0 for byte in start[:4]]
    if start[:1] in (b"{", b"[") and zeros == [False, True, False, True]:
        return "utf-16-le", 0
    if start[1:2] in (b"{", b"[") and zeros == [True, False, True, False]:
        return "utf-16-be", 0
    return "utf-8", 0


def _cannot_open(path: Path, error: OSError) -> str:
    if path.is_dir():
        return f"{path}: is a folder, not a trace; give one file of it"
    return f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
