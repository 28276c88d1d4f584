"""The fenced blocks of the pages, a folder in which they run, and stand-ins for programs that no test machine has."""

import ast
import builtins
import gzip
import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.readme import MADE, OUTPUT, PAGES, ROOT
from tests.transcript import simulated
from traces.simulate import simulate
from traces.write_kineto import write_kineto
from traces.write_nsight import write_nsight

FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

TRAIN = """
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(20):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""

NAMES = {
    "gpu_trace_advisor": "import gpu_trace_advisor",
    "model": "import torch; model = torch.nn.Linear(8, 8)",
    "train": "import torch; layer = torch.nn.Linear(8, 8); train = lambda batch: layer(batch).sum().backward()",
    "loader": "import torch; loader = [torch.randn(4, 8) for _ in range(20)]",
    "batches": "import torch; batches = iter([torch.randn(4, 8) for _ in range(20)])",
}
"""What a reader's own program has, by the name that the pages give it."""

TRAINERS = {
    "huggingface": (
        """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x, labels=None):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

model, data = Model(), [{"x": torch.randn(8), "labels": torch.randn(8)} for _ in range(64)]
args = TrainingArguments(
    "model", max_steps=12, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
)
""",
        "trainer.train()",
    ),
    "lightning": (
        """
import torch
from lightning.pytorch import LightningModule, Trainer

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, number):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
""",
        "trainer.fit_loop.max_epochs = 1\n"
        "trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4))",
    ),
}
"""Before and after a block about a trainer."""

HOOK = """
from torch.profiler import ProfilerActivity, profile, schedule
plan = schedule(wait=0, warmup=1, active=2, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=on_trace_ready) as run:
    for _ in range(3):
        run.step()
"""

STAND_INS = {
    "ssh": '#!/bin/sh\nshift\nexec "$@"\n',
    "python": """#!/bin/sh
case "$2" in
    sglang.launch_server) [ "$3" = --model-path ] && [ $# = 4 ] ;;
    *) exec "{python}" "$@" ;;
esac
""",
    "vllm": """#!/bin/sh
[ "$1" = serve ] || exit 2
shift 2
for option; do
    case "$option" in
        --profiler-config.profiler=torch | --profiler-config.torch_profiler_dir=/* | \\
            --profiler-config.torch_profiler_record_shapes=true) ;;
        *) exit 2 ;;
    esac
done
[ $# -gt 0 ] || [ -d "$VLLM_TORCH_PROFILER_DIR" ]
""",
    "nsys": """#!/bin/sh
case "$*" in
    "profile -t cuda,nvtx -o run python train.py") touch run.nsys-rep ;;
    "export -t sqlite run.nsys-rep") [ -f run.nsys-rep ] && mv prepared.sqlite run.sqlite ;;
    *) exit 2 ;;
esac
""",
}
"""Programs by name, each refusing what its documentation does not have."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    shown: bool
    """It shows what the program writes, and is made from that."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @cached_property
    def commands(self) -> list[str]:
        """Of a shell block, with what a backslash continues."""
        joined = self.code.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]

    @cached_property
    def needs(self) -> str:
        """The mark of the tests that have what it needs; empty where the package itself does."""
        for mark in TRAINERS:
            if f"integrations.{mark}" in self.code:
                return mark
        if self.language == "python":
            return (
                "torch" if re.search(r"torch\.profiler|trace_handler|(advisor|efficiency)\.record\(", self.code) else ""
            )
        return "torch" if re.search(r"advisor\.record (?!--server)", self.code) else ""

    @cached_property
    def program(self) -> str:
        """Of a Python block, with what comes before and after it in a reader's own program."""
        before, after = TRAINERS.get(self.needs, ("", ""))
        if not before:
            used = {name.id for name in ast.walk(ast.parse(self.code)) if isinstance(name, ast.Name)}
            before = "\n".join(line for name, line in NAMES.items() if name in used)
        if self.code.startswith("on_trace_ready"):
            after = HOOK
        return f"{before}\n{self.code}\n{after}\n"

    @cached_property
    def unknown(self) -> set[str]:
        """Names that neither the program nor Python has."""
        names = [node for node in ast.walk(ast.parse(self.program)) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        made = {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(ast.parse(self.program))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        made |= {
            node.name for node in ast.walk(ast.parse(self.program)) if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        made |= {node.arg for node in ast.walk(ast.parse(self.program)) if isinstance(node, ast.arg)}
        return {node.id for node in names} - stored - made - set(dir(builtins))


def blocks() -> list[Block]:
    """All of them."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = [match.span() for pattern in (OUTPUT, MADE) for match in pattern.finditer(text)]
        for match in FENCED.finditer(text):
            shown = any(start <= match.start() < end for start, end in made)
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page.relative_to(ROOT).as_posix(), line, match["language"], match["code"], shown))
    return found


def prepare(folder: Path) -> dict[str, str]:
    """Put what the pages name into a folder; the environment in which their blocks run there."""
    recordings = {"trace": (True, 2), "before": (True, 2), "after": (False, 1), "run1": (True, 3), "run2": (True, 4)}
    for name, (loader, seed) in recordings.items():
        write_kineto(simulated(loader, seed), folder / f"{name}.json.gz")
    for name in ("trace", "run1", "run2"):
        (folder / f"{name}.json").write_bytes(gzip.decompress((folder / f"{name}.json.gz").read_bytes()))
    (folder / "traces").symlink_to(ROOT / "traces")
    shutil.copy(ROOT / "traces" / "eager-decode.json.gz", folder / "decode.json.gz")
    shutil.copy(ROOT / "traces" / "eager-decode.json.gz", folder / "capture-bs8.json.gz")
    write_nsight(simulate("training-dataloader"), folder / "prepared.sqlite")
    for place in ("runs/step-100", "efficiency", "profiles", ".config/fish/completions", "bin"):
        (folder / place).mkdir(parents=True)
    for rank in (0, 1):
        shutil.copy(ROOT / "traces" / f"comm-bound-rank-rank{rank}.json.gz", folder / "runs" / "step-100")
    shutil.copy(folder / "before.json.gz", folder / "efficiency" / "before.json")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    for program, text in STAND_INS.items():
        file = folder / "bin" / program
        file.write_text(text.replace("{python}", sys.executable), encoding="utf-8")
        file.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bare = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS", "VIRTUAL_ENV")}
    return {**bare, "PATH": path, "HOME": str(folder), "PWD": str(folder)}
