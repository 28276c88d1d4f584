"""What README.md and docs/ show of the program. `python -m tests.readme` makes it anew and writes it into them.

An output is a fenced block right below a comment that names its command; `| head -40` keeps the first 40 lines:

    <!-- output of: advise --help -->

What lies between `<!-- generated: NAME -->` and `<!-- end -->` is made by a function of GENERATED.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.attribution.causes import CATEGORIES, CAUSES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "report.png"
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

OUTPUT = re.compile(
    r"(?P<head><!-- output of: advise (?P<arguments>.*?) -->\n```\w*\n)(?P<text>.*?)(?P<end>^```$)",
    re.DOTALL | re.MULTILINE,
)
MADE = re.compile(r"(?P<head><!-- generated: (?P<name>\w+) -->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL)


def advise(arguments: str) -> str:
    """What `advise` writes for these arguments, on a terminal of 80 columns without colours."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    arguments, _, lines = arguments.partition(" | head -")
    command = [sys.executable, "-m", "gpu_trace_advisor", *shlex.split(arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise RuntimeError(f"advise {arguments}: exit code {done.returncode}\n{done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()[: int(lines) if lines else None])


def causes() -> str:
    """The glossary of causes, by what the GPU was doing."""
    parts = []
    for when in dict.fromkeys(cause.when for cause in CAUSES.values()):
        parts.append(f"## {'While the GPU is idle' if when == 'idle' else when.capitalize()}\n")
        parts += [
            f"**{cause.label}** (`{cause.name}`, {CATEGORIES[cause.category].label}). {cause.meaning} {cause.measured}\n"
            for cause in CAUSES.values()
            if cause.when == when
        ]
    return "\n".join(parts)


def rules() -> str:
    """Every rule: its headline, and the first sentence and the advice of its page."""
    parts = []
    for rule in find_rules()[0]:
        says = " ".join(rule.page.split("\n\n")[0].split())
        parts.append(f"**{rule.title}** (`{rule.id}`). {says} *What to do:* {rule.section('What to do')}\n")
    return "\n".join(parts)


def transcript() -> str:
    """An agent's calls; needs the package mcp."""
    from tests.transcript import transcript as made

    return made()


GENERATED: dict[str, Callable[[], str]] = {"causes": causes, "rules": rules, "transcript": transcript}


def shown(text: str) -> dict[str, str]:
    """The outputs that a text shows, by the arguments of their commands."""
    return {match["arguments"]: match["text"] for match in OUTPUT.finditer(text)}


def refreshed(text: str) -> str:
    """The same text with every output and every generated part as it is now."""
    text = OUTPUT.sub(lambda match: match["head"] + advise(match["arguments"]) + match["end"], text)
    return MADE.sub(lambda match: match["head"] + GENERATED[match["name"]]() + match["end"], text)


def picture(chromium: str) -> None:
    """The first screen of the report on a sample, as docs/report.png."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "gpu_trace_advisor", "traces/training-dataloader.json.gz"]
        subprocess.run([*command, "--html", str(page), "-o", os.devnull], cwd=ROOT, check=True)
        browser = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,900",
        ]
        shot = [f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run([*browser, "--virtual-time-budget=5000", *shot], check=True, capture_output=True)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    if chromium := shutil.which("chromium"):
        picture(chromium)
