"""Stand-ins for model servers, which speak the calls of their profilers as their documentation says."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

Behaviour = Callable[[Any], int]


@contextmanager
def standing_in(**behaviour: Behaviour) -> Iterator[tuple[str, list[str]]]:
    """A server that does this at POST /start_profile and /stop_profile; its address, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            call = self.path.strip("/")
            asked.append(call)
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            act = behaviour.get(call)
            code = act(self) if act else 404
            if code:
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Sglang:
    """As "Benchmark and Profiling" and `ProfileReqInput` of SGLang have it: the calls are there however it was started; of
    the body's fields `output_dir` says where to; one profile at a time; a file for each rank of tensor parallelism.
    """

    FIELDS: ClassVar = {
        "output_dir": str, "start_step": int, "num_steps": int, "activities": list, "profile_by_stage": bool,
        "with_stack": bool, "record_shapes": bool, "merge_profiles": bool,
    }  # fmt: skip

    def __init__(self, ranks: list[bytes], default: Path) -> None:
        self.ranks, self.default = ranks, default
        self.folder: Path | None = None
        self.given: dict[str, object] = {}

    def start(self, handler: Any) -> int:
        if handler.body and handler.headers.get("Content-Type") != "application/json":
            return 422
        given = json.loads(handler.body or b"{}")
        if any(not isinstance(value, self.FIELDS[name]) for name, value in given.items() if name in self.FIELDS):
            return 422
        if self.folder is not None:  # RuntimeError: Profiling is already in progress. Call /stop_profile first.
            return 500
        self.given, self.folder = given, Path(given.get("output_dir") or self.default)
        return 200

    def stop(self, handler: Any) -> int:
        if self.folder is None:
            return 500
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank, trace in enumerate(self.ranks):
            (self.folder / f"1764580000.25-TP-{rank}.trace.json.gz").write_bytes(trace)
        self.folder = None
        return 200


class Vllm:
    """As "Profiling vLLM" and vllm/profiler/wrapper.py have it: the calls are there only with a profiler's folder; bodies are
    not read; besides the workers' files there are one of the front end, which is named by host and process, and a table.
    """

    def __init__(self, worker: bytes, folder: Path | None) -> None:
        self.worker, self.folder = worker, folder

    def start(self, handler: Any) -> int:
        return 200 if self.folder else 404

    def stop(self, handler: Any) -> int:
        if not self.folder:
            return 404
        front = {"schemaVersion": 1, "traceEvents": [
            {"ph": "X", "cat": "python_function", "name": "asyncio/base_events.py(1): run", "pid": 7, "tid": 7, "ts": 1.0,
             "dur": 900.0, "args": {"Python id": 1}},
        ]}  # fmt: skip
        name = "node-7.corp.example_7.async_llm.1764580000250000000.pt.trace.json.gz"
        (self.folder / name).write_bytes(gzip.compress(json.dumps(front).encode()))
        (self.folder / "dp0_pp0_tp0_dcp0_ep0_rank0.1764580000260000000.pt.trace.json.gz").write_bytes(self.worker)
        (self.folder / "profiler_out_0.txt").write_text("Name  Self CUDA\n", encoding="utf-8")
        return 200
