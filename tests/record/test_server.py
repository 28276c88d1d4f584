"""A running server recorded by its own HTTP calls, against stand-ins that speak them as their documentation says."""

import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from gpu_trace_advisor.cli import main as advise
from gpu_trace_advisor.record.script import main

from tests.model_servers import Behaviour, Sglang, Vllm, standing_in


def fine(handler: BaseHTTPRequestHandler) -> int:
    return 200


def test_sglang_is_told_where_to_write(
    tmp_path: Path, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an absolute path: its folder of work is another."""
    traces = [sample(f"comm-bound-rank-rank{rank}").read_bytes() for rank in (0, 1)]
    server = Sglang(traces, tmp_path / "its own")
    (tmp_path / "profiles").mkdir()
    monkeypatch.chdir(tmp_path)
    with standing_in(start_profile=server.start, stop_profile=server.stop) as (url, asked):
        assert record(url, Path("profiles")) == 0
    assert asked == ["start_profile", "stop_profile"]
    assert server.given == {"output_dir": str((tmp_path / "profiles").resolve()), "record_shapes": True}
    told = capsys.readouterr()
    assert "2 recordings: 1764580000.25-TP-0.trace.json.gz, 1764580000.25-TP-1.trace.json.gz" in told.err
    assert "rank 1 device 1, which the other ranks wait for" in told.out


def test_sglang_in_a_container_knows_the_folder_by_another_name(
    tmp_path: Path, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Sglang([sample("eager-decode").read_bytes()], tmp_path)
    (tmp_path / "mounted").mkdir()
    (tmp_path / "inside").symlink_to(tmp_path / "mounted")
    with standing_in(start_profile=server.start, stop_profile=server.stop) as (url, _):
        assert record(url, tmp_path / "mounted", "--server-folder", f"{tmp_path}/inside") == 0
    assert server.given["output_dir"] == f"{tmp_path}/inside"
    assert capsys.readouterr().out.startswith("GPU busy")


def test_sglang_that_profiles_already_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Sglang([], tmp_path)
    server.folder = tmp_path
    with standing_in(start_profile=server.start, stop_profile=server.stop) as (url, _):
        assert record(url, tmp_path) == 2
    assert "answers 500 Internal Server Error; is it profiling already" in capsys.readouterr().err


def test_vllm_s_front_end_is_no_rank(
    tmp_path: Path, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Vllm(sample("eager-decode").read_bytes(), tmp_path)
    with standing_in(start_profile=server.start, stop_profile=server.stop) as (url, _):
        assert record(url, tmp_path) == 0
    both = capsys.readouterr()
    assert "2 recordings" in both.err and "profiler_out" not in both.err
    assert advise([str(tmp_path / "dp0_pp0_tp0_dcp0_ep0_rank0.1764580000260000000.pt.trace.json.gz")]) == 0
    alone = capsys.readouterr().out

    def numbers(text: str) -> list[str]:
        return re.findall(r"\d[\d.,]*(?= ms| %)", text)

    assert numbers(both.out) == numbers(alone)


def test_vllm_without_a_folder_is_told_how_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Vllm(b"", None)
    with standing_in(start_profile=server.start, stop_profile=server.stop) as (url, _):
        assert record(url, tmp_path) == 2
    assert '--profiler-config \'{"profiler": "torch", "torch_profiler_dir": "FOLDER"}\'' in capsys.readouterr().err


def record(url: str, folder: Path, *more: str) -> int:
    return main(["--server", url, "--seconds", "0.1", "--folder", str(folder), "--patience", "6", *more])


def test_the_files_that_the_server_writes_are_advised_on(
    tmp_path: Path, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "earlier.json.gz").write_bytes(sample("training-dataloader").read_bytes())

    def slowly(handler: BaseHTTPRequestHandler) -> int:
        """As a profiler does: a file grows after the call was answered."""

        def write() -> None:
            whole = sample("eager-decode").read_bytes()
            with (tmp_path / "rank0.pt.trace.json.gz").open("wb") as file:
                for at in range(0, len(whole), len(whole) // 4 + 1):
                    file.write(whole[at : at + len(whole) // 4 + 1])
                    file.flush()
                    time.sleep(0.3)

        threading.Thread(target=write).start()
        return 200

    with standing_in(start_profile=fine, stop_profile=slowly) as (url, asked):
        assert record(url, tmp_path) == 0
    assert asked == ["start_profile", "stop_profile"]
    told = capsys.readouterr()
    assert "1 recordings: rank0.pt.trace.json.gz" in told.err
    assert told.out.startswith("GPU busy")


def test_waiting_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def writes(handler: BaseHTTPRequestHandler) -> int:
        (tmp_path / "rank0.json").write_bytes(b"")
        return 200

    monkeypatch.setattr("gpu_trace_advisor.record.server.TELL_SECONDS", 1.0)
    with standing_in(start_profile=fine, stop_profile=writes) as (url, _):
        record(url, tmp_path)
    said = capsys.readouterr().err
    assert "the server writes its files, which may take minutes (at most 6 s)" in said
    assert said.count(f"waiting for files in {tmp_path}: 1 so far, 0.0 MB") in (4, 5)


def broken(handler: BaseHTTPRequestHandler) -> int:
    handler.connection.close()
    return 0


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ({}, "/start_profile: the server answers 404 Not Found; start vLLM with --profiler-config"),
        ({"start_profile": lambda handler: 500}, "answers 500"),
        ({"start_profile": lambda handler: 403}, "answers 403 Forbidden; it wants a key, which is not sent"),
        ({"start_profile": fine, "stop_profile": broken}, "/stop_profile: "),
        (
            {"start_profile": fine, "stop_profile": fine},
            "the server wrote no recording there within 6 s; does it know this folder by another",
        ),
    ],
)
def test_a_server_that_refuses_dies_or_writes_nothing_is_one_line(
    behaviour: dict[str, Behaviour], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing_in(**behaviour) as (url, _):
        assert record(url, tmp_path) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("record: ") and " ".join(says.split()) in " ".join(last.split())


def test_a_server_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asleep(handler: BaseHTTPRequestHandler) -> int:
        time.sleep(1.5)
        return 0

    with standing_in(start_profile=fine, stop_profile=asleep) as (url, _):
        assert main(["--server", url, "--seconds", "0.1", "--folder", str(tmp_path), "--patience", "0.5"]) == 2
    assert "no answer within 0.5 s" in capsys.readouterr().err


def test_an_address_for_clients_is_the_server_s(tmp_path: Path) -> None:
    with standing_in(start_profile=fine, stop_profile=fine) as (url, asked):
        assert record(f"{url}/v1/", tmp_path) == 2
    assert asked == ["start_profile", "stop_profile"]


def test_nothing_is_asked_of_another_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in(elsewhere=fine) as (other, asked):

        def sent_on(handler: BaseHTTPRequestHandler) -> int:
            handler.send_response(302)
            handler.send_header("Location", f"{other}/elsewhere")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return 0

        with standing_in(start_profile=sent_on) as (url, _):
            assert record(url, tmp_path) == 2
    assert asked == []
    assert "answers 302" in capsys.readouterr().err


def test_no_server_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in() as (url, _):
        pass
    assert record(url, tmp_path) == 2
    assert "Connection refused; is the server running there?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *(
            (["--server", url], "expected an address such as http://")
            for url in (
                "ftp://x",
                "http://[::1",
                "http://127.0.0.1:99999",
                "http://127.0.0.1:x",
                "http://a b",
                "http://",
                "h:1",
            )
        ),
        (["--server", "http://me:secret@127.0.0.1:9"], "give it without them"),
        (["--server", "http://127.0.0.1:9", "--folder", "missing"], "missing: no such folder"),
        (["--server", "http://127.0.0.1:9", "--seconds", "0"], "above 0"),
    ],
)
def test_bad_usage(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_an_interruption_ends_the_recording_and_keeps_it(
    tmp_path: Path, sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleep, interruptions = time.sleep, iter([KeyboardInterrupt])

    def interrupted(seconds: float) -> None:
        for error in interruptions:
            raise error
        sleep(seconds)

    def writes(handler: BaseHTTPRequestHandler) -> int:
        (tmp_path / "rank0.pt.trace.json.gz").write_bytes(sample("eager-decode").read_bytes())
        return 200

    with standing_in(start_profile=fine, stop_profile=writes) as (url, asked):
        monkeypatch.setattr("gpu_trace_advisor.record.server.time.sleep", interrupted)
        assert record(url, tmp_path) == 0
    assert asked == ["start_profile", "stop_profile"]
    told = capsys.readouterr()
    assert "interrupted: what was recorded until now is kept" in told.err and told.out.startswith("GPU busy")


def test_a_second_interruption_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with standing_in(start_profile=fine, stop_profile=fine) as (url, asked):
        monkeypatch.setattr("gpu_trace_advisor.record.server.time.sleep", interrupted)
        assert record(url, tmp_path) == 130
    assert asked == ["start_profile", "stop_profile"]
    assert capsys.readouterr().err.splitlines()[-1] == "record: interrupted"
