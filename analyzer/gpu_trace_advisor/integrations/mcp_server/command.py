"""The command `advise-mcp`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_trace_advisor.cli import version
from gpu_trace_advisor.errors import AdviseError, BadUsage
from gpu_trace_advisor.integrations.mcp_server.folders import Folders
from gpu_trace_advisor.integrations.mcp_server.skill import install_skill


def main(argv: Sequence[str] | None = None) -> int:
    """Run `advise-mcp`; returns the exit code."""
    p = argparse.ArgumentParser("advise-mcp", description="Advice on GPU recordings for coding agents: MCP over stdio.")
    p.add_argument(
        "--root", metavar="DIR", type=Path, action="append",
        help="a folder whose recordings may be read; may be given several times (default: the current folder)",
    )  # fmt: skip
    p.add_argument(
        "--install-skill", metavar="DIR", type=Path, help="write SKILL.md for agents into a folder, and stop"
    )
    p.add_argument("-V", "--version", action="version", version=f"advise-mcp {version()}")
    options = p.parse_args(argv)
    try:
        if options.install_skill:
            print(f"written: {install_skill(options.install_skill)}")
            return 0
        folders = Folders(options.root or [Path.cwd()])
        try:
            from gpu_trace_advisor.integrations.mcp_server.server import build
        except ImportError as error:
            raise BadUsage(f"needs the MCP SDK: pip install 'gpu-trace-advisor[mcp]' ({error})") from None
    except (AdviseError, OSError) as error:
        print(f"advise-mcp: {error}", file=sys.stderr)
        return 2
    if sys.stdin.isatty():
        print("advise-mcp: a coding agent starts this command and talks to it; Ctrl-C ends it", file=sys.stderr)
    build(folders).run("stdio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
