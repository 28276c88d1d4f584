"""Opening a trace: plain, gzipped, UTF-16."""

import gzip
from pathlib import Path

import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.chrome.text_file import TextFile

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


LONG = b"".join(b"%d, " % (i * i) for i in range(300_000))  # does not compress to nothing, and crosses every block


@pytest.mark.parametrize(
    "what", ["whole", "members", "cut", "cut in a member", "damaged", "garbage after", "zeros after"]
)
def test_a_buffer_is_filled_with_what_the_blocks_hold(what: str, tmp_path: Path) -> None:
    packed, members = gzip.compress(LONG, 1), gzip.compress(LONG[:900_000], 1) + gzip.compress(LONG[900_000:], 1)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    path = tmp_path / "t.gz"
    path.write_bytes({
        "whole": packed, "members": members, "cut": packed[:-5000], "cut in a member": members[:-5000], "damaged": bytes(damaged),
        "garbage after": packed + b"none of it", "zeros after": packed + b"\0" * 999,
    }[what])  # fmt: skip
    with TextFile(path) as file:
        blocks, damage = b"".join(file.blocks()), file.damage
    assert (damage != "") == (what in ("cut", "cut in a member", "damaged"))
    for size in (1000, 400_000, 1 << 22):
        text, said = filled(path, size)
        assert said == damage
        # Up to where the damage is seen, which the one may see a little later.
        assert text[: len(blocks)] == blocks[: len(text)]
        assert abs(len(text) - len(blocks)) <= (1 << 18 if damage else 0)
        if what != "damaged":
            assert LONG.startswith(text)


@pytest.mark.parametrize("size", [1, 100_000, 1_500_000])
def test_what_was_taken_comes_once_more(size: int, tmp_path: Path) -> None:
    for name, stored in (("t", LONG), ("t.gz", gzip.compress(LONG, 1)), ("u", LONG.decode().encode("utf-16"))):
        (tmp_path / name).write_bytes(stored)
        found, buffer = bytearray(), memoryview(bytearray(70_000))
        with TextFile(tmp_path / name) as file:
            taken = file.take(size)
            assert len(taken) >= size
            file.put_back(taken)
            while got := file.fill(buffer):
                found += buffer[:got]
        assert bytes(found) == LONG


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


def test_what_unpacks_to_a_thousand_times_its_size_is_refused_before_it_is_held(tmp_path: Path) -> None:
    """One string of 200 MB in 200 kB; the same file unpacked is read."""
    import tracemalloc

    from gpu_trace_advisor.ingest import read

    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "')
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(UnreadableTrace, match="more than 200 times its size"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 3 * (64 << 20)
    tracemalloc.stop()
