"""An agent's calls from a trace to a verified fix, as the README shows them."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from traces.write_kineto import write_kineto

LINES = 9  # of each answer


def transcript() -> str:
    """Calls and the first lines of their answers, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        for name, loader in (("before", True), ("after", False)):
            write_kineto(simulated(loader), root / f"{name}.json.gz")
        return asyncio.run(_session(root))


def simulated(loader: bool, seed: int = 0) -> Any:
    """A training of ten steps; without `loader` the batches are there in time. seed: another run of the same program."""
    from traces.simulate import simulate

    return simulate("training-dataloader", steps=10, jitter=0.02, seed=seed or 1 + loader, loader=loader)


async def _session(root: Path) -> str:
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = ["-m", "gpu_trace_advisor.integrations.mcp_server.command", "--root", str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    calls: tuple[tuple[str, dict[str, object]], ...] = (
        ("open_recording", {"path": "before.json.gz"}),
        ("finding", {"recording": "recording-1", "number": 1}),
        ("what_if", {"recording": "recording-1", "rules": "dataloader"}),
        ("open_recording", {"path": "after.json.gz"}),
        ("compare", {"recording": "recording-2", "before": "before.json.gz"}),
    )
    parts = ["```text\n"]
    with (root.parent / "errors.txt").open("w") as errors:
        async with Client(stdio_client(server, errlog=errors)) as agent:
            for tool, arguments in calls:
                answer = await agent.call_tool(tool, arguments)
                lines = "".join(part.text for part in answer.content).splitlines()  # type: ignore[union-attr, unused-ignore]
                told = [line for line in lines if line.strip()]
                given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
                parts.append(f"> {tool}({given})\n")
                parts += [f"{line}\n" for line in told[:LINES]]
                parts.append("…\n\n" if len(told) > LINES else "\n")
    return "".join([*parts[:-1], parts[-1].rstrip("\n") + "\n", "```\n"])
