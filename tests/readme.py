"""The outputs that README.md shows. `python -m tests.readme` runs their commands anew and writes them into it.

An output is a fenced block right below a comment that names its command:

    <!-- output of: advise --help -->

`| head -40` behind the command keeps the first 40 lines.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

OUTPUT = re.compile(
    r"(?P<head><!-- output of: advise (?P<arguments>.*?) -->\n```\w*\n)(?P<text>.*?)(?P<end>^```$)",
    re.DOTALL | re.MULTILINE,
)


def advise(arguments: str) -> str:
    """What `advise` writes for these arguments, on a terminal of 80 columns without colours."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    arguments, _, lines = arguments.partition(" | head -")
    command = [sys.executable, "-m", "gpu_trace_advisor", *shlex.split(arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise RuntimeError(f"advise {arguments}: exit code {done.returncode}\n{done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()[: int(lines) if lines else None])


def shown(readme: str) -> dict[str, str]:
    """The outputs that a text shows, by the arguments of their commands."""
    return {match["arguments"]: match["text"] for match in OUTPUT.finditer(readme)}


def refreshed(readme: str) -> str:
    """The same text with every output as it is now."""
    return OUTPUT.sub(lambda match: match["head"] + advise(match["arguments"]) + match["end"], readme)


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
