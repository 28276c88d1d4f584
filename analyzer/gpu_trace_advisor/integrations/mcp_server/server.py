"""The server: recordings stay open between calls; nothing is written but reports, nothing is read outside its folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
import anyio.to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError, BadUsage
from gpu_trace_advisor.integrations.mcp_server import answers
from gpu_trace_advisor.integrations.mcp_server.folders import Folders
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.sanitize import clean

INSTRUCTIONS = """Advice on recordings of GPU programs (torch.profiler, Nsight Systems). Call open_recording first; the \
other tools take its answer's name. Times are wall time of the window; each number is measured, modelled or assumed, as it \
says. Savings come from replaying the timeline."""
MOST_OPEN = 16
LONGEST_ERROR = 1_000  # characters
LONGEST_QUOTED = 60
OPTION = re.compile(r"(?<!\S)--([a-z][a-z-]*)")


@dataclass(frozen=True)
class Opened:
    """A recording, or the ranks of a run, as it was when it was opened."""

    places: tuple[str, ...]
    request: Request
    states: tuple[tuple[int, int] | None, ...]
    advice: Advice


class Recordings:
    """Those that are open, by the name that calls use."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self._open: dict[str, Opened] = {}
        self._lock = Lock()
        self._opened = 0

    def open(self, path: str, request: Request) -> tuple[str, Advice]:
        """The name under which a recording is open now, and what is said of it."""
        places = tuple(self.folders.recordings(path))
        key = places, request, states(places)
        with self._lock:
            if known := self._known(key):
                return known, self._open[known].advice
        opened = Opened(*key, analysed(places, request))
        with self._lock:
            if known := self._known(key):  # another call was faster
                return known, self._open[known].advice
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._opened += 1
            name = f"recording-{self._opened}"
            self._open[name] = opened
        return name, opened.advice

    def _known(self, key: tuple[tuple[str, ...], Request, object]) -> str | None:
        return next((name for name, one in self._open.items() if (one.places, one.request, one.states) == key), None)

    def __getitem__(self, name: str) -> Opened:
        """What is open under a name.

        Raises:
            BadUsage: nothing, or its files are others by now.
        """
        with self._lock:
            if name not in self._open:
                raise BadUsage(f"{name} is not open (open: {', '.join(self._open) or 'none'}); call open_recording")
            opened = self._open[name]
        if states(opened.places) != opened.states:
            raise BadUsage(f"{name}: its file has changed since it was opened; call open_recording again")
        return opened


def states(places: Sequence[str]) -> tuple[tuple[int, int] | None, ...]:
    """Size and time of change of each file; None where it is gone."""
    found: list[tuple[int, int] | None] = []
    for place in places:
        try:
            status = Path(place).stat()
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def analysed(places: Sequence[str], request: Request) -> Advice:
    from gpu_trace_advisor.parallel.advise import look_at

    return look_at(list(places), request, jobs=1).advice


async def in_thread(work: Callable[[], str]) -> str:
    """Run what takes long beside the protocol; what was expected to go wrong becomes a tool error that says what to do.

    A call that is cancelled is answered at once; its thread ends by itself, and its result is dropped.
    """
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except AdviseError as error:
        raise ToolError(_short(str(error))) from None
    except Exception as error:
        raise ToolError(
            _short(f"a fault of gpu-trace-advisor itself: {type(error).__name__}: {error}") + "; try another tool"
        ) from None


def _short(text: str) -> str:
    """One line that is no longer than an error need be, whatever it quotes, with options by the names that tools have."""
    line = OPTION.sub(lambda option: option[1].replace("-", "_"), clean(text))
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


class Server(MCPServer[Any]):
    """One whose refusals are one line each, those of the SDK too: of arguments of other types, and of tools by other names."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            what = str(error)
            if isinstance(error.__cause__, ValidationError):
                what = f"{name}: {'; '.join(map(_wrong, error.__cause__.errors()))}"
            raise type(error)(_short(what)) from error.__cause__


def _wrong(argument: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, argument['loc']))}={str(argument['input'])[:LONGEST_QUOTED]}: {argument['msg']}"


def build(folders: Folders) -> MCPServer[Any]:
    """The server with its tools."""
    server = Server("gpu-trace-advisor", instructions=INSTRUCTIONS, log_level="ERROR")
    recordings = Recordings(folders)

    @server.tool()
    async def open_recording(
        path: str, phase: str | None = None, hardware: str | None = None, steps: str | None = None,
        window: str | None = None,
    ) -> str:  # fmt: skip
        """Read a recording, or a folder with the ranks of one run; answers its name for the other tools and the first screen.

        path: in the server's folders. phase: training, prefill or decode. hardware: such as h100-sxm, where the recording
        does not name the device. steps: such as 3-7. window: steps, gpu, all, or START:END in milliseconds.
        """

        def work() -> str:
            name, advice = recordings.open(path, Request(phase=phase, hardware=hardware, steps=steps, window=window))
            lines = [f"open as {name}", *answers.verdict(advice)]
            if len(advice.devices) > 1:
                lines += ["", "devices:", *answers.devices(advice)]
            return answers.fitted(lines, more=False)

        return await in_thread(work)

    def told(name: str, answer: Callable[[Advice], list[str]], more: bool) -> str:
        return answers.fitted(answer(recordings[name].advice), more)

    @server.tool()
    async def verdict(recording: str, more: bool = False) -> str:
        """The first screen: the verdict, what limits it, where the time went, the first changes."""
        return await in_thread(partial(told, recording, answers.verdict, more))

    @server.tool()
    async def list_findings(recording: str, device: int | None = None, more: bool = False) -> str:
        """All findings of a device, the best first, with savings (range, grade) and what to do."""
        return await in_thread(
            partial(told, recording, lambda a: answers.findings(a, answers.device_of(a, device)), more)
        )

    @server.tool()
    async def finding(recording: str, number: int, device: int | None = None, more: bool = False) -> str:
        """One finding: the time it names by cause, its events with their places, formula, assumptions, doubts, sources."""
        return await in_thread(
            partial(told, recording, lambda a: answers.finding(a, answers.device_of(a, device), number), more)
        )

    @server.tool()
    async def causes(recording: str, device: int | None = None, more: bool = False) -> str:
        """The wall time by cause; the parts add up to it exactly."""
        return await in_thread(partial(told, recording, lambda a: answers.causes(answers.device_of(a, device)), more))

    @server.tool()
    async def kernels(
        recording: str, contains: str = "", sort: str = "time", limit: int = 15, device: int | None = None,
        more: bool = False,
    ) -> str:  # fmt: skip
        """Kernels by name: class, calls, time. contains: part of the name. sort: time, calls or name."""
        return await in_thread(
            partial(
                told, recording, lambda a: answers.kernels(answers.device_of(a, device), contains, sort, limit), more
            )
        )

    @server.tool()
    async def largest_gaps(recording: str, count: int = 5, device: int | None = None, more: bool = False) -> str:
        """The longest stretches in which the GPU was idle: why, in what the host was, and what ended them."""
        return await in_thread(
            partial(told, recording, lambda a: answers.gaps(answers.device_of(a, device), count), more)
        )

    @server.tool()
    async def what_if(recording: str, rules: str, more: bool = False) -> str:
        """Replay the timeline with the fixes of these rules together (comma-separated ids): what they would save."""

        def work() -> str:
            opened = recordings[recording]
            if not rules.strip(" ,"):
                raise BadUsage("rules: name at least one, as list_findings has them in brackets")
            request = replace(opened.request, what_if=rules)
            return answers.fitted(answers.what_if(analysed(opened.places, request)), more)

        return await in_thread(work)

    @server.tool()
    async def compare(recording: str, before: str, more: bool = False) -> str:
        """Hold an open recording against an earlier one, saved advice or baseline: what changed per step, and the verdict."""

        def work() -> str:
            from gpu_trace_advisor.gate.check import gates
            from gpu_trace_advisor.report.text.gate import render_comparison

            opened = recordings[recording]
            outcome = gates(opened.advice.to_json(), [folders.existing(before)], None, opened.request)
            assert outcome.comparison is not None
            return answers.fitted(
                render_comparison(outcome.comparison, color=False, width=answers.WIDTH).splitlines(), more
            )

        return await in_thread(work)

    @server.tool()
    async def explain(name: str = "", more: bool = False) -> str:
        """The page of a rule or of a cause of time: why it costs, what to do, when it must not fire. No name: a list."""

        def work() -> str:
            from gpu_trace_advisor.report.text.rule_page import explained

            return answers.fitted(explained(name, answers.WIDTH).splitlines(), more)

        return await in_thread(work)

    @server.tool()
    async def write_report(recording: str, path: str) -> str:
        """Write the HTML report of an open recording to a file in the server's folders that ends in .html."""

        def work() -> str:
            from gpu_trace_advisor.parallel.advise import look_at
            from gpu_trace_advisor.report.html.page import render
            from gpu_trace_advisor.runtime.files import write_whole

            opened = recordings[recording]
            place = folders.writable(path)
            looked = look_at(list(opened.places), opened.request, jobs=1, drawn=True)
            write_whole(place, render(looked.advice, looked.drawings))
            return f"written: {place.name}, {place.stat().st_size:,} B"

        return await in_thread(work)

    return server
