"""Every fenced block of the pages runs as it stands there.

What no test machine has (another machine, Nsight Systems, model servers, object stores, a cluster) is a stand-in, or its options
are read as the command reads them. A block of a language or with a command that nothing here knows fails.
"""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_trace_advisor.cli import parser

from tests.doc_blocks import Block, blocks, prepare
from tests.model_servers import Sglang, standing_in
from tests.readme import ROOT

ALL = blocks()


def of(language: str) -> list[object]:
    """The blocks of a language, as parameters with the marks of what they need."""
    found = [block for block in ALL if block.language == language and not block.shown]
    assert found, language
    return [
        pytest.param(block, id=str(block), marks=[getattr(pytest.mark, block.needs)] if block.needs else [])
        for block in found
    ]


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    return tmp_path, prepare(tmp_path)


def run(place: tuple[Path, dict[str, str]], *command: str) -> subprocess.CompletedProcess[str]:
    """It ends well, in the folder of a reader."""
    at, environment = place
    done = subprocess.run(
        command, cwd=at, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
    return done


def test_no_block_is_of_a_kind_that_is_not_run() -> None:
    """What is shown of the program is held against it in test_docs; workflows in test_docs_examples."""
    assert {block.language for block in ALL if not block.shown} == {"sh", "python", "toml", "json", "yaml"}
    assert {block.page for block in ALL if block.language == "yaml"} == {"docs/integrations.md"}


def in_a_shell(command: str, place: tuple[Path, dict[str, str]]) -> None:
    run(place, "bash", "-c", command)


def advised(command: str, place: tuple[Path, dict[str, str]]) -> None:
    """Run; of what is elsewhere only the options are read."""
    if "://" in command:
        parser().parse_args(shlex.split(command, comments=True)[1:])
    else:
        in_a_shell(command, place)


def installed(command: str, place: tuple[Path, dict[str, str]]) -> None:
    """From the checkout, with extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (what,) = shlex.split(command, comments=True)[2:]
    asked = re.fullmatch(r"\.(?:\[([\w,]+)\])?", what)
    assert asked, command
    assert set((asked[1] or "").split(",")) - {""} <= set(project["optional-dependencies"])


def made(command: str, place: tuple[Path, dict[str, str]]) -> None:
    """The target exists, and the tests that are asked for do."""
    words = shlex.split(command, comments=True)
    run((ROOT, place[1]), "make", "--dry-run", words[1])
    for word in words[2:]:
        name, _, tests = word.partition("=")
        assert name == "TESTS"
        collected(f"python -m pytest {tests}", place)


def collected(command: str, place: tuple[Path, dict[str, str]]) -> None:
    arguments = shlex.split(command, comments=True)[2:]
    if arguments[0] == "pytest":
        run((ROOT, place[1]), sys.executable, "-m", *arguments, "--collect-only", "-q", "-p", "no:cacheprovider")
    else:
        assert find_spec(arguments[0]), command


def of_a_server(command: str, place: tuple[Path, dict[str, str]]) -> None:
    """At the address of the stand-in, for less than ten seconds."""
    server = Sglang([(place[0] / "decode.json.gz").read_bytes()], place[0])
    with standing_in(start_profile=server.start, stop_profile=server.stop) as (url, asked):
        in_a_shell(command.replace("http://127.0.0.1:8000", url).replace("--seconds 10", "--seconds 0.1"), place)
    assert asked == ["start_profile", "stop_profile"]


def for_agents(command: str, place: tuple[Path, dict[str, str]]) -> None:
    """Without anybody to talk to it ends; without the package mcp it says what is missing."""
    if find_spec("mcp"):
        in_a_shell(command, place)
    else:
        done = subprocess.run(
            shlex.split(command, comments=True), cwd=place[0], env=place[1], capture_output=True, check=False
        )
        assert done.returncode == 2 and b"needs the MCP SDK" in done.stderr


COMMANDS: tuple[tuple[str, Callable[[str, tuple[Path, dict[str, str]]], None]], ...] = (
    (r"advise ", advised),
    (r"advise-mcp ", for_agents),
    (r"python -m gpu_trace_advisor\.record --server ", of_a_server),
    (r"python -m (gpu_trace_advisor\.record|sglang\.launch_server) ", in_a_shell),
    (r"(ssh|nsys|mkdir|eval|vllm|VLLM_\w+=\S+ vllm) ", in_a_shell),
    (r"pip install ", installed),
    (r"make ", made),
    (r"\.venv/bin/python -m ", collected),
)
"""How a command begins -> what is done with it."""


@pytest.mark.parametrize("block", of("sh"))
def test_commands(block: Block, folder: tuple[Path, dict[str, str]]) -> None:
    (budget,) = [one.code for one in ALL if one.code.startswith("# budget.toml")]
    (folder[0] / "budget.toml").write_text(budget, encoding="utf-8")
    for command in block.commands:
        runs = next((act for begins, act in COMMANDS if re.match(begins, command)), None)
        assert runs, f"{block}: nothing here runs {command}"
        runs(command, folder)


@pytest.mark.parametrize("block", of("python"))
def test_programs(block: Block, folder: tuple[Path, dict[str, str]]) -> None:
    if "def test_" in block.code:
        (folder[0] / "test_example.py").write_text(block.code, encoding="utf-8")
        done = run(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py")
        assert re.search("passed|1 skipped", done.stdout)
        return
    assert block.unknown == set()
    (folder[0] / "program.py").write_text(block.program, encoding="utf-8")
    run(folder, sys.executable, "program.py")
    if '"out/"' in block.code:
        kinds = {path.name.partition(".pt.trace.")[2].removesuffix(".gz") for path in (folder[0] / "out").iterdir()}
        assert kinds == {"json", "txt", "html"}
    for file in re.findall(r'(?:record|export_chrome_trace)\("([^"]+)"\)', block.code):
        assert (folder[0] / file).stat().st_size


@pytest.mark.parametrize("block", of("toml"))
def test_settings(block: Block, folder: tuple[Path, dict[str, str]]) -> None:
    """Limits hold for a sample trace, twice, wherever they stand."""
    budget = next(one.code for one in ALL if one.code.startswith("# budget.toml"))
    (folder[0] / "budget.toml").write_text(budget, encoding="utf-8")
    options = ["--budget", "budget.toml"]
    if block.code.startswith("[tool."):
        (folder[0] / "pyproject.toml").write_text(block.code, encoding="utf-8")
        options = []
    for _ in range(2):
        done = run(folder, "advise", "trace.json", *options)
        assert re.search("limit|budget", done.stdout, re.IGNORECASE) and done.stderr == ""


@pytest.mark.parametrize("block", of("json"))
def test_what_starts_a_server(block: Block, folder: tuple[Path, dict[str, str]]) -> None:
    for server in json.loads(block.code)["mcpServers"].values():
        for_agents(shlex.join([server["command"], *server["args"]]), folder)


@pytest.mark.notebook
def test_a_notebook(folder: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the page as cells."""
    import nbformat
    from nbclient import NotebookClient

    (block,) = [one for one in ALL if "\nadvice\n" in one.code]
    cells: list[dict[str, object]] = [
        {"cell_type": "code", "source": line, "metadata": {}, "outputs": [], "execution_count": None}
        for line in block.code.splitlines()
        if line
    ]
    notebook = nbformat.from_dict({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})  # type: ignore[no-untyped-call, unused-ignore]
    monkeypatch.chdir(folder[0])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = {kind: text for output in notebook.cells[2]["outputs"] for kind, text in output["data"].items()}
    assert "data loader" in shown["text/html"] and shown["text/plain"].startswith("<Advice on trace.json")
    assert "idle" in notebook.cells[3]["outputs"][0]["data"]["text/plain"]
