"""Folders and patterns on a web server, and downloads that break off; the server is Python's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from gpu_trace_advisor.errors import UnreadableTrace
from gpu_trace_advisor.ingest.locations import find_places, local


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing, and sends half of what is called cut.json."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith("/run/cut.json"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 500)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("rank10.json", "rank2.json", "rank1.json.gz", "notes.txt", "a b.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/run/"
        server.shutdown()


def test_a_folder_is_listed(url: str) -> None:
    assert find_places(url) == [url + name for name in ("a%20b.json", "rank1.json.gz", "rank2.json", "rank10.json")]


def test_a_pattern_is_matched(url: str) -> None:
    assert find_places(f"{url}rank*.json") == [f"{url}rank2.json", f"{url}rank10.json"]
    with pytest.raises(UnreadableTrace, match="no traces there"):
        find_places(f"{url}none*.json")


def test_credentials_go_along_and_are_not_shown(url: str) -> None:
    own = url.replace("http://", "http://me:secret@")
    assert find_places(f"{own}rank2*") == [f"{own}rank2.json"]
    with pytest.raises(UnreadableTrace) as error:
        find_places(f"{own}none*.json")
    assert "secret" not in str(error.value)


def test_a_download_that_breaks_off_is_no_short_recording(url: str) -> None:
    with pytest.raises(UnreadableTrace, match="broke off after 500 of 1,000 bytes"), local(f"{url}cut.json"):
        pass
