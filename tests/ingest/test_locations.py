"""What is fetched and found is bounded, whatever a server or a folder holds."""

import base64
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.gate.baseline import load_runs
from gpu_trace_advisor.ingest import locations, natural
from gpu_trace_advisor.ingest.locations import find_places, local, name_of, shown

from tests.build import kernel, written


class Server(BaseHTTPRequestHandler):
    seen: ClassVar[list[str | None]] = []
    elsewhere: ClassVar[str] = ""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", f"{self.elsewhere}/x.json")
            self.end_headers()
            return
        self.send_response(200)
        if self.path == "/told":
            self.send_header("Content-Length", str(1 << 50))
        self.end_headers()
        for _ in range(1 if self.path != "/endless" else 64):
            try:
                self.wfile.write(b"x" * (1 << 16))
            except OSError:
                return


@pytest.fixture
def url() -> Iterator[str]:
    Server.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def fetched(place: str) -> int:
    with local(place) as path:
        return path.stat().st_size


@pytest.mark.parametrize("path", ["told", "endless"])
def test_an_answer_without_end_is_refused(path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "MOST_FETCHED", 1 << 20)
    with pytest.raises(UnreadableTrace, match="that are fetched"):
        fetched(f"http://{url}/{path}")


def test_user_and_password_reach_the_server_and_no_other(url: str) -> None:
    expected = "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert fetched(f"http://me:s%40cret@{url}/a.json") == 1 << 16
    assert Server.seen == [expected]
    Server.elsewhere = f"http://localhost:{url.rpartition(':')[2]}"
    fetched(f"http://me:s%40cret@{url}/away")
    assert Server.seen[1:] == [expected, None]


@pytest.mark.parametrize(
    "place",
    ["http://", "http://[::1/x", "http://me:secret@/x", "http://host:port/x", "http://host:99999/x", "https:///x"],
)
def test_what_is_no_url_is_refused_without_its_secret(place: str) -> None:
    with pytest.raises(UnreadableTrace) as refused:
        for found in find_places(place):
            fetched(found)
    assert "secret" not in str(refused.value) and "secret" not in shown(place)


@pytest.mark.parametrize("path", ["", "..", ".", "x" * 300 + ".json", "a%2Fb", "a%00b"])
def test_no_name_of_a_url_leaves_the_folder(path: str, url: str) -> None:
    assert fetched(f"http://{url}/{path}") == 1 << 16


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
@pytest.mark.parametrize("name", ["a\0b.json", "a\ud800.json"])
def test_a_name_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="no file can have this name"):
        find_places(name)
    with pytest.raises(UnreadableTrace, match="no file can have this name"):
        load_runs(Path(name), Request())


def test_a_pattern_finds_files_alone(tmp_path: Path) -> None:
    """A pipe waits for somebody who writes."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    with pytest.raises(UnreadableTrace, match="no file matches"):
        find_places(str(tmp_path / "*.json"))
    with pytest.raises(UnreadableTrace, match="no traces in this folder"):
        find_places(str(tmp_path))
    good = written(tmp_path / "good.json", kernel(1, 2))
    assert find_places(str(tmp_path / "*.json")) == find_places(str(tmp_path)) == [str(good)]


def test_numbers_in_names_are_those_that_can_be_read() -> None:
    names = ["1²2.json.gz", "²", "٣.json", "10.json", "9.json", "a" * 100]
    in_order = ["1²2.json.gz", "٣.json", "9.json", "10.json", "a" * 100, "²"]
    assert [path.name for path in sorted(map(Path, names), key=natural)] == in_order
    assert name_of("s3://bucket/²/1²2.json") == "1²2.json"
