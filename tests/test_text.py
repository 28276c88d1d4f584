"""Opening a trace: plain, gzipped, UTF-16."""

import gzip
from pathlib import Path

import pytest

from analyzer.errors import UnreadableTrace
from analyzer.ingest.text import TextFile

TEXT = '{"traceEvents": [{"name": "é€😀"}]}' + " " * 100
UTF8 = TEXT.encode()


def read(path: Path) -> tuple[bytes, str]:
    with TextFile(path) as file:
        text = b"".join(file.blocks())
    for size in (1 if len(text) < 1000 else 9973, 1 << 20):
        assert filled(path, size) == (text, file.damage)
    return text, file.damage


def filled(path: Path, size: int) -> tuple[bytes, str]:
    """The same, taken by the buffer."""
    text, buffer = bytearray(), bytearray(size)
    with TextFile(path) as file:
        while got := file.fill(memoryview(buffer)):
            text += buffer[:got]
        assert file.done <= file.size
        return bytes(text), file.damage


@pytest.mark.parametrize(
    "stored",
    [
        UTF8,
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        b"\xff\xfe" + TEXT.encode("utf-16-le"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-32"),
        gzip.compress(UTF8),
        gzip.compress(TEXT.encode("utf-16")),
        gzip.compress(UTF8[:10]) + gzip.compress(UTF8[10:11]) + gzip.compress(UTF8[11:]),
        gzip.compress(UTF8) + b"\0" * 700,
        gzip.compress(UTF8) + b"trailing garbage",
        gzip.compress(UTF8) + b"\x1f",
    ],
    ids=[
        "plain",
        "bom",
        "utf16",
        "utf16le",
        "utf16be",
        "utf16 without bom",
        "utf32",
        "gzip",
        "gzip utf16",
        "members",
        "zeros after",
        "garbage after",
        "half a magic after",
    ],
)
def test_every_form_gives_the_same_text(tmp_path: Path, stored: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(stored)
    assert read(path) == (UTF8, "")


def test_long_text_crosses_blocks(tmp_path: Path) -> None:
    text = ("é" * 5_000_001).encode()
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(text, 1) + gzip.compress(b"x" * 3_000_000, 1))
    assert read(path) == (text + b"x" * 3_000_000, "")
    path.write_bytes(text.decode().encode("utf-16"))
    assert read(path) == (text, "")


def test_truncated_gzip_gives_what_decompresses(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    packed = gzip.compress(bytes(range(256)) * 400, 0)
    path.write_bytes(packed[:60_000])
    text, damage = read(path)
    assert (bytes(range(256)) * 400).startswith(text)
    assert len(text) > 50_000
    assert damage == "the gzip data ends early"


def test_damaged_gzip_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    packed = bytearray(gzip.compress(b"abc" * 1000))
    packed[-6] ^= 0xFF  # the checksum
    path.write_bytes(packed)
    _, damage = read(path)
    assert damage.startswith("the gzip data is damaged")


def test_gzip_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(b"\x1f\x8b")
    assert read(path) == (b"", "the gzip data ends early")


def test_progress_reaches_the_size(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(UTF8)
    with TextFile(path) as file:
        list(file.blocks())
        assert file.done == file.size == len(UTF8)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="cannot be read"):
        TextFile(tmp_path / "absent.json")
    with pytest.raises(UnreadableTrace, match="is a folder"):
        TextFile(tmp_path)
