"""The server for agents, by the SDK's own client over standard input and output."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gpu_trace_advisor
import pytest
from gpu_trace_advisor.cli import main as advise
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.integrations.mcp_server.command import main
from gpu_trace_advisor.integrations.mcp_server.folders import Folders

from tests.build import kernel, written
from tests.fuzz.checks import check_printed
from tests.transcript import simulated
from traces.write_kineto import write_kineto

TOOLS = {
    "open_recording", "verdict", "list_findings", "finding", "causes", "kernels", "largest_gaps", "what_if", "compare",
    "explain", "write_report",
}  # fmt: skip
TOKENS = 2_000


def tokens(text: str) -> int:
    """Rather too many: at most four letters, one digit or one sign are a token, and a blank before a word belongs to it."""
    return len(re.findall(r"[A-Za-z]{1,4}|\d|[^\sA-Za-z\d]|\n|  +", text))


@pytest.fixture
def folder(sample: Callable[[str], Path], tmp_path: Path) -> Path:
    """A server's folder with two recordings, and a secret outside."""
    root = tmp_path / "runs"
    root.mkdir()
    shutil.copy(sample("training-dataloader"), root / "before.json.gz")
    shutil.copy(sample("gpu-bound-training"), root / "after.json.gz")
    shutil.copy(sample("eager-decode"), tmp_path / "secret.json.gz")
    (root / "link.json.gz").symlink_to(tmp_path / "secret.json.gz")
    return root


@asynccontextmanager
async def client(root: Path) -> AsyncIterator[Any]:
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = ["-m", "gpu_trace_advisor.integrations.mcp_server.command", "--root", str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    with (root.parent / "errors.txt").open("w") as errors:
        async with Client(stdio_client(server, errlog=errors)) as session:
            yield session


async def told(session: Any, tool: str, **arguments: object) -> str:
    result = await session.call_tool(tool, arguments)
    text = "".join(part.text for part in result.content)
    assert not result.is_error, text
    return str(text)


async def refused(session: Any, tool: str, **arguments: object) -> str:
    result = await session.call_tool(tool, arguments)
    assert result.is_error
    return "".join(part.text for part in result.content)


@pytest.mark.mcp
def test_from_trace_to_verified_fix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an agent calls, in its order; the text is the command's own."""

    async def session() -> None:
        async with client(folder) as agent:
            assert {tool.name for tool in (await agent.list_tools()).tools} == TOOLS
            opened = await told(agent, "open_recording", path="before.json.gz")
            assert opened.startswith(
                "open as recording-1\nGPU busy 52.4 % of 128.4 ms; the largest loss is the data loader"
            )
            found = await told(agent, "list_findings", recording="recording-1")
            assert re.match(
                r"1\. The data loader does not keep up \[dataloader\]: saves \S+ ms to \S+ ms of 128.4 ms", found
            )
            evidence = await told(agent, "finding", recording="recording-1", number=1)
            assert "it names: dataloader 60.7 ms" in evidence and "event: enumerate(DataLoader)" in evidence
            causes = await told(agent, "causes", recording="recording-1")
            assert "dataloader: 60.7 ms, 47.2 % (idle, host; measured) data loader" in causes
            assert "saves" in await told(agent, "what_if", recording="recording-1", rules="dataloader")
            assert "num_workers" in await told(agent, "explain", name="dataloader")
            assert "dataloader" in (await told(agent, "largest_gaps", recording="recording-1", count=2))
            kernels = await told(agent, "kernels", recording="recording-1", contains="scudnn", limit=1)
            assert kernels.splitlines()[1].startswith("volta_scudnn") and len(kernels.splitlines()) == 2
            await told(agent, "open_recording", path="after.json.gz")
            verdict = await told(agent, "compare", recording="recording-2", before="before.json.gz")
            assert re.search("not comparable|improved|regressed|no difference|too few", verdict)
            assert "written: report.html" in await told(
                agent, "write_report", recording="recording-1", path="report.html"
            )

    asyncio.run(session())
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert advise([str(folder / "before.json.gz")]) == 0
    assert "GPU busy 52.4 % of 128.4 ms" in capsys.readouterr().out


@pytest.mark.mcp
def test_what_cannot_be_done_is_a_tool_error_that_says_what_to_do(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")

    async def session() -> None:
        async with client(folder) as agent:
            for path in ("../secret.json.gz", str(folder.parent / "secret.json.gz"), "link.json.gz", "/etc/passwd"):
                assert "outside the folders of this server" in await refused(agent, "open_recording", path=path)
            assert "neither a file nor a folder" in await refused(agent, "open_recording", path="pipe.json")
            for path in ("missing.json", "http://127.0.0.1:9/x.json", "s3://bucket/x.json", "a\0b"):
                assert "no such file in the folders" in await refused(agent, "open_recording", path=path)
            assert "call open_recording" in await refused(agent, "verdict", recording="recording-9")
            await told(agent, "open_recording", path="before.json.gz")
            assert "numbered from 1" in await refused(agent, "finding", recording="recording-1", number=99)
            assert "numbered from 0" in await refused(agent, "causes", recording="recording-1", device=7)
            assert "expected time, calls, name" in await refused(agent, "kernels", recording="recording-1", sort="x")
            assert "name at least one" in await refused(agent, "what_if", recording="recording-1", rules=" ,")
            error = await refused(agent, "open_recording", path="before.json.gz", steps="x")
            assert "steps x: expected numbers and ranges" in error and "--" not in error
            assert "no rule nothing" in await refused(agent, "explain", name="nothing")
            assert "expected training" in await refused(
                agent, "open_recording", path="before.json.gz", phase="sleeping"
            )
            assert "limit=-1: at least 1" in await refused(agent, "kernels", recording="recording-1", limit=-1)
            assert "count=0: at least 1" in await refused(agent, "largest_gaps", recording="recording-1", count=0)
            (folder / "page.html").write_text("<html>my own page</html>")
            assert "something else lies there" in await refused(
                agent, "write_report", recording="recording-1", path="page.html"
            )
            for _ in range(2):  # a report replaces a report
                await told(agent, "write_report", recording="recording-1", path="again.html")
            for path in ("../report.html", "before.json.gz", "link.html", "report.txt"):
                (folder / "link.html").unlink(missing_ok=True)
                (folder / "link.html").symlink_to(folder.parent / "secret.json.gz")
                assert await refused(agent, "write_report", recording="recording-1", path=path)

    asyncio.run(session())
    assert not (folder.parent / "report.html").exists()
    assert (folder / "page.html").read_text() == "<html>my own page</html>"


TEXTS: tuple[Any, ...] = (
    "\0", "x/" * 5000, "~", "\x1b]0;PWN\x07\x1b[31m", "a\nb\r\nc", "\u202eabc", "a\u2028b", "\x9b31m", "file:///etc/passwd",
    "::error::x", "before.json.gz\0", "before.json.gz/x", "C:\\x", "/proc/self/environ", "x" * 300_000, 5, None, [],
    {"\x1b": "\n"},
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (-1, 0, 2**63, 10**30, -(10**30), 1.5, 1e308, "\x1b7\n", None, [], {"a": "b\n" * 500})
TEXT_ARGUMENTS = {
    "open_recording": ("path", "phase", "hardware", "steps", "window"), "verdict": ("recording",),
    "kernels": ("contains", "sort"), "what_if": ("rules",), "compare": ("before",), "explain": ("name",),
    "write_report": ("path",),
}  # fmt: skip
NUMBER_ARGUMENTS = {
    "list_findings": ("device",), "finding": ("number", "device"), "kernels": ("limit",), "largest_gaps": ("count", "device"),
    "verdict": ("more",),
}  # fmt: skip


@pytest.mark.mcp
def test_whatever_is_asked_is_answered_without_a_fault_and_refused_in_a_line(folder: Path) -> None:
    needed = {
        "recording": "recording-1",
        "path": "before.json.gz",
        "number": 1,
        "rules": "dataloader",
        "before": "after.json.gz",
    }
    takes = {"open_recording": ["path"], "explain": [], "finding": ["recording", "number"], "what_if": ["recording", "rules"],
             "compare": ["recording", "before"], "write_report": ["recording", "path"]}  # fmt: skip

    async def session() -> None:
        async with client(folder) as agent:
            await told(agent, "open_recording", path="before.json.gz")
            for arguments, values in ((TEXT_ARGUMENTS, TEXTS), (NUMBER_ARGUMENTS, NUMBERS)):
                for tool, name, value in [(t, n, v) for t, ns in arguments.items() for n in ns for v in values]:
                    given = {one: needed[one] for one in takes.get(tool, ["recording"])}
                    result = await agent.call_tool(tool, {**given, name: value})
                    text = "".join(part.text for part in result.content)
                    check_printed(text, tool)
                    assert "fault of" not in text and "Traceback" not in text, (tool, name, value)
                    if result.is_error:
                        assert "\n" not in text and len(text) < 1_200, (tool, name, value, text)
                        assert "pydantic" not in text
            unknown = await refused(agent, "no such\x1b[31m\ntool")
            check_printed(unknown, "an unknown tool")
            assert "\n" not in unknown
            wrong = await refused(agent, "finding", recording="recording-1", number=1.5)
            assert wrong.startswith("finding: number=1.5: Input should be a valid integer")

    asyncio.run(session())
    assert "Traceback" not in (folder.parent / "errors.txt").read_text(encoding="utf-8")


@pytest.mark.mcp
def test_a_recording_that_is_made_again_is_read_again(folder: Path, sample: Callable[[str], Path]) -> None:
    """An agent that records to the same file is told of the new recording, never of the old one."""

    async def session() -> None:
        async with client(folder) as agent:
            first = await told(agent, "open_recording", path="before.json.gz")
            assert await told(agent, "open_recording", path="before.json.gz") == first
            shutil.copy(sample("eager-decode"), folder / "before.json.gz")
            assert "changed since it was opened" in await refused(agent, "causes", recording="recording-1")
            second = await told(agent, "open_recording", path="before.json.gz")
            assert second.startswith("open as recording-2") and second.splitlines()[1] != first.splitlines()[1]

    asyncio.run(session())


@pytest.mark.mcp
def test_a_comparison_reads_nothing_outside(folder: Path) -> None:
    """A folder with a link out of the server's folders is not read, as a run before or as a recording."""
    (folder / "ranks").mkdir()
    (folder / "ranks" / "rank0.json.gz").symlink_to(folder.parent / "secret.json.gz")

    async def session() -> None:
        async with client(folder) as agent:
            await told(agent, "open_recording", path="before.json.gz")
            for path in ("ranks", "ranks/rank0.json.gz", "."):
                assert "outside" in await refused(agent, "compare", recording="recording-1", before=path)
            assert "outside" in await refused(agent, "open_recording", path="ranks")

    asyncio.run(session())


@pytest.mark.mcp
def test_answers_are_short_unless_more_is_asked_for(folder: Path) -> None:
    """Each answer of each tool, also for a recording with long names."""
    names = [f"void cutlass::{n:03d}::" + "long_name<float, 128>" * 400 for n in range(40)]
    written(folder / "long.json", *(kernel(100 * n, 100 * n + 50, name=name) for n, name in enumerate(names)))

    async def session() -> None:
        async with client(folder) as agent:
            for number, path in enumerate(("before.json.gz", "long.json"), 1):
                name = f"recording-{number}"
                answers = [await told(agent, "open_recording", path=path)]
                tools = ("verdict", "list_findings", "causes", "kernels", "largest_gaps")
                answers += [await told(agent, tool, recording=name) for tool in tools]
                answers.append(await told(agent, "kernels", recording=name, limit=1000))
                answers.append(await told(agent, "largest_gaps", recording=name, count=1000))
                answers.append(await told(agent, "what_if", recording=name, rules="dataloader"))
                answers.append(await told(agent, "compare", recording=name, before="after.json.gz"))
                assert [size for size in map(tokens, answers) if size > TOKENS] == []
                assert len(await told(agent, "kernels", recording=name, limit=1000, more=True)) >= len(answers[6])
            assert "ask with more=true" in answers[6]
            assert tokens(await told(agent, "explain")) <= TOKENS
            assert tokens(await told(agent, "explain", name="host-sync")) <= TOKENS
            assert tokens(await refused(agent, "open_recording", path="x/" * 50_000)) <= TOKENS

    asyncio.run(session())


@pytest.mark.mcp
def test_calls_at_once_and_calls_that_are_given_up(folder: Path) -> None:
    """One that takes long keeps no other waiting; the client gives it up, and the server goes on."""
    written(folder / "slow.json", *(kernel(10 * n, 10 * n + 5, name=f"kernel{n % 7}") for n in range(100_000)))

    async def session() -> None:
        async with client(folder) as agent:
            opened = await asyncio.gather(*(told(agent, "open_recording", path="before.json.gz") for _ in range(4)))
            assert len({text.partition("\n")[2] for text in opened}) == 1
            slow = asyncio.create_task(told(agent, "open_recording", path="slow.json"))
            await asyncio.sleep(0.3)
            assert "wall 128.4 ms" in await told(agent, "causes", recording="recording-1")  # the slow one is on its way
            assert not slow.done()
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            assert "wall 128.4 ms" in await told(agent, "causes", recording="recording-1")
            again = await told(agent, "open_recording", path="slow.json")
            assert "wall" in await told(agent, "causes", recording=again.partition("\n")[0].removeprefix("open as "))

    asyncio.run(session())


def test_the_folders_of_a_server(folder: Path) -> None:
    folders = Folders([folder])
    assert folders.recordings("before.json.gz") == [str(folder.resolve() / "before.json.gz")]
    with pytest.raises(BadUsage, match=r"link\.json\.gz is a link that leads outside"):
        folders.recordings(".")
    (folder / "link.json.gz").rename(folder / "data")  # which is no recording, and not read
    assert len(folders.recordings(".")) == 2
    (folder / "other.json.gz").symlink_to("before.json.gz")
    assert len(folders.recordings(".")) == 3
    for path in ("../missing.json", "/etc/no such file"):  # nor is it said whether it is there
        with pytest.raises(BadUsage, match="outside"):
            folders.existing(path)
    with pytest.raises(BadUsage, match=r"ends in \.html"):
        folders.writable("advice.json")


def test_the_skill_is_installed_and_its_commands_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--install-skill", str(tmp_path)]) == 0
    skill = (tmp_path / "gpu-trace-advisor" / "SKILL.md").read_text(encoding="utf-8")
    assert skill.startswith("---\nname: gpu-trace-advisor\ndescription: ")
    monkeypatch.chdir(tmp_path)
    for name, loader in (("before", True), ("after", False)):
        write_kineto(simulated(loader), f"{name}.json.gz")
    commands = re.findall(r"^ +advise (.+)$", skill, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        assert advise(command.split()) == 0, command
        told = capsys.readouterr()
        assert told.err == ""
    assert told.out.startswith("improved: step time")  # what the last one, the comparison, is read for


@pytest.mark.torch
def test_the_skill_s_recording_is_one_that_can_be_read(tmp_path: Path) -> None:
    """Its command as it is written, on a training script."""
    assert main(["--install-skill", str(tmp_path)]) == 0
    skill = (tmp_path / "gpu-trace-advisor" / "SKILL.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ +python (-m gpu_trace_advisor.record .+)$", skill, re.MULTILINE)
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(12):\n    model(torch.randn(4, 8)).sum().backward()\n    optimizer.step()\n"
    )
    run = [sys.executable, *command.split()]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trace = gpu_trace_advisor.read(tmp_path / "before.json.gz")
    assert sum(name.startswith("ProfilerStep#") for name in trace.names) == 5


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["-V"])
    assert end.value.code == 0
    assert re.fullmatch(r"advise-mcp \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.startswith("advise-mcp: ")
