"""Record traces/cpu-mlp.json.gz: three steps of a small model trained on the CPU, with stacks, shapes and memory.

    python -m traces.record_cpu OUTPUT.json.gz

Needs torch (2.13 made the committed file). The recording is real; only folders before a package's own path, the host's
name and identities are taken out of it.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any


def train(path: Path) -> None:
    """Train and record; the profiler writes to `path`."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.randn(160, 64), torch.randint(10, (160,)))
    batches = torch.utils.data.DataLoader(data, batch_size=32)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda recording: recording.export_chrome_trace(str(path)),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as profiler:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            profiler.step()


def neutral(name: str) -> str:
    """A frame's name with its path from the package or the script on."""
    return re.sub(r"^\S*/(?=(torch|traces)/)", "", re.sub(r"^\S*/lib/python3\.\d+/(site-packages/)?", "", name))


def clean(trace: dict[str, Any]) -> dict[str, Any]:
    """Without names of this machine."""
    for key in ("host_name", "trace_id", "traceName"):
        trace.pop(key, None)
    for event in trace["traceEvents"]:
        event["name"] = neutral(str(event["name"]))
        event.get("args", {}).pop("Call stack", None)
    return trace


def main(output: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        train(path)
        trace = clean(json.loads(path.read_text(encoding="utf-8")))
    # As torch prints it: one event a line keeps the file readable and small.
    events = ",\n".join(json.dumps(event) for event in trace.pop("traceEvents"))
    head = json.dumps(trace)[:-1]
    with output.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(f'{head}, "traceEvents": [\n{events}\n]}}\n'.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
