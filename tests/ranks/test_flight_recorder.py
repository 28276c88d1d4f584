"""Flight-recorder dumps beside the traces: hung, absent, mismatched, hostile."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.test_ranks import looked, training, write


def entry(number: int, name: str = "nccl:all_reduce", state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "collective_seq_id": number, "profiling_name": name, "state": state,
        "is_p2p": False, **more,
    }  # fmt: skip


def dump(folder: Path, rank: int, *entries: dict[str, Any], as_json: bool = False) -> None:
    data = {"version": "2.9", "pg_config": {}, "entries": list(entries)}
    text = json.dumps(data).encode() if as_json else pickle.dumps(data)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(text)


def said(folder: Path) -> list[str]:
    return [note.message for note in looked(folder).health if note.code == "flight-recorder"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(training(ranks=2, steps=3), tmp_path / "run")


@pytest.mark.parametrize("as_json", [False, True])
def test_who_did_not_come_is_named(as_json: bool, folder: Path) -> None:
    for rank in (0, 1, 3):
        dump(folder, rank, entry(6), entry(7), entry(8, state="started"), as_json=as_json)
    dump(folder, 2, entry(5), entry(6), entry(7), as_json=as_json)
    assert said(folder) == [
        "flight recorder: group 0: nccl:all_reduce, call 8, did not end on ranks 0, 1, 3: "
        "rank 2 did not come, whose last call is 7"
    ]


def test_ranks_that_call_different_collectives_are_named(folder: Path) -> None:
    dump(folder, 0, entry(1), entry(2, state="started"))
    dump(
        folder, 1, entry(1), entry(2, "nccl:_all_gather_base", "started"), entry(1, "nccl:send", "started", is_p2p=True)
    )
    assert said(folder) == [
        "flight recorder: group 0: call 2 is not the same collective on all ranks: "
        "nccl:all_reduce on rank 0; nccl:_all_gather_base on rank 1"
    ]


def test_what_ended_everywhere_is_no_fault(folder: Path) -> None:
    dump(folder, 0, entry(1), entry(2))
    dump(folder, 1, entry(2), entry(3))  # rank 0's dump was written before call 3
    assert said(folder) == []


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made-by-a-pickle",)


def test_a_pickle_runs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Hostile()]}))
    assert said(folder) == ["nccl_trace_rank_0: no flight-recorder dump that can be read: it asks for code to be run"]
    assert not (folder / "made-by-a-pickle").exists()


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"{", b"[" * 10_000, b'{"entries": 3}', b"\x80\x04]q\x00."])
def test_a_broken_dump_is_named(data: bytes, folder: Path) -> None:
    (folder / "nccl_trace_rank_0").write_bytes(data)
    (note,) = said(folder)
    assert note.startswith("nccl_trace_rank_0: no flight-recorder dump that can be read")
