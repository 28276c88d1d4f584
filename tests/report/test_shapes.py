"""Every format draws every shape of advice, keeps names harmless, and tells nobody's machine."""

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.gate.saved import first_violation

from tests import build as b
from tests.advice.test_schema import SCHEMA
from tests.fuzz.checks import INJECTED, check_printed
from tests.hostile import TEXTS

USER, HOST = "Alice Q. Example", "node7.corp.example"
PLACES = (
    f"/home/{USER}/my code/train.py(7): main",
    f"C:\\Users\\{USER}\\code\\train.py(9): main",
    f"file:///home/{USER}/train.py(8): f",
    f"\\\\{HOST}\\share\\{USER}\\train.py(3): g",
    f"//{HOST}/share/{USER}/train.py(2): h",
    f"C:\\\\Users\\\\{USER}\\\\train.py(4): i",
    f"\\\\?\\UNC\\{HOST}\\share\\{USER}\\train.py(5): j",
    f"sftp://{HOST}/home/{USER}/train.py(6): k",
)  # fmt: skip
DEVICE = {"id": 0, "name": "NVIDIA A100-SXM4-40GB"}
FORMATS = ("text", "json", "html", "csv", "markdown", "sarif", "perfetto", "github", "gitlab")
SENT_ON = ("html", "csv", "markdown", "sarif", "perfetto", "gitlab")  # what is made to be sent on


def program(devices: int, names: tuple[str, ...] = ("gemm",), frames: tuple[str, ...] = ()) -> list[b.Event]:
    events, n = [], 0
    for i in range(4):
        at = 1000 * i
        events.append(b.step(i, at, at + 1000))
        events += [b.frame(frame, at + 1 + k, at + 900 - k) for k, frame in enumerate(frames)]
        for k in range(5):
            for device in range(max(devices, 1)):
                n += 1
                begin = at + 20 + 150 * k + 20 * device
                events.append(
                    b.op("aten::mm", begin, begin + 18, **{"Input Dims": "[[64, 64], [64, 64]]", "External id": n})
                )
                if devices:
                    name = names[n % len(names)]
                    events += [
                        b.call(begin + 2, begin + 9, n),
                        b.kernel(begin + 20, begin + 60, n, name, device=device),
                    ]
        events.append(b.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 800, at + 990))
    return events


def recording(folder: Path, devices: int, kind: str) -> tuple[list[str], list[str]]:
    """The recordings and options of a shape."""
    names: tuple[str, ...]
    frames: tuple[str, ...]
    names, frames, file = ("gemm", "ncclDevKernel_AllReduce_Sum_f32"), ("train.py(1): main",), "a.json"
    if kind == "hostile":
        names = frames = tuple(text.replace("\ud800", "") for text in TEXTS)
        file = f"x\x1b[31m::error::<img src=x>|{'y' * 99}.json"
    if kind == "places":
        names, frames, file = PLACES, PLACES, f"{HOST}_12345.1700000000000.pt.trace.json"
    given = [
        b.written(
            folder / file,
            *program(devices, names, frames),
            deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
        )
    ]
    options: list[str] = []
    if kind == "what-if":
        options = ["--what-if", "dataloader,cuda-graphs"]
    elif kind == "ladder":
        options = [
            "--phase",
            "decode",
            "--weights",
            "1GB",
            "--price",
            "2.5",
            "--hardware",
            "a100-sxm4-40",
            "--output-tokens",
            "9",
        ]
    elif kind == "partial":
        given[0].write_bytes(given[0].read_bytes()[:-700])
    elif kind == "errors":
        (folder / "bad.json").write_text("nothing", encoding="utf-8")
        given.append(folder / "bad.json")
    elif kind == "ranks":
        given = []
        for rank in range(2):
            job = {"rank": rank, "world_size": 3}
            given.append(b.written(folder / f"{rank}.json", *program(devices, names, frames), distributedInfo=job))
    elif kind == "compared":
        options = ["--against", str(b.written(folder / "before.json", *program(devices)[:-3]))]
    elif kind == "held":
        (folder / "budget.toml").write_text('unknown = "ok"\n[limits]\nstep = "1 us"\n', encoding="utf-8")
        options = ["--budget", str(folder / "budget.toml")]
    return [str(path) for path in given], options


KINDS = ("plain", "what-if", "ladder", "partial", "errors", "ranks", "compared", "held", "hostile", "places")


@pytest.mark.parametrize("devices", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_draws_every_shape(
    kind: str, devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    given, options = recording(tmp_path, devices, kind)
    made: dict[str, str] = {}
    for form in FORMATS:
        if form == "github" and kind not in ("compared", "held"):
            continue
        code = main([*given, *options, "--format", form, "--jobs", "1"])
        out, err = capsys.readouterr()
        assert code == 0 or (code in (1, 2) and kind in ("compared", "held")) or (code == 2 and not devices), err
        check_printed(out, form)
        check_printed(err, "standard error")
        assert err.count("\n") <= 1
        made[form] = out if code == 0 or out else ""
    if made["json"]:
        assert first_violation(json.loads(made["json"]), SCHEMA) == ""
    assert not INJECTED.search(made["html"])
    if made["gitlab"]:
        for issue in json.loads(made["gitlab"]):
            assert issue.keys() == {"type", "check_name", "description", "severity", "fingerprint", "location"}
    head, *rows = csv.reader(io.StringIO(made["csv"])) if made["csv"] else [[]]
    assert {len(row) for row in rows} <= {len(head)}
    assert not [cell for row in rows for cell in row if cell[:1] in ("=", "+", "@", "\t", "\r")]
    for form in SENT_ON:
        for word in ("Alice", "Example", HOST, os.fspath(tmp_path)):
            at = made[form].find(word)
            assert at < 0, f"{form} tells {made[form][max(at - 80, 0) : at + 80]}"


@pytest.mark.parametrize("form", SENT_ON)
def test_what_nsight_knows_of_the_machine_stays_there(
    form: str, sample: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Command, environment and host name stand in an export; so may places in names of processes, threads and ranges."""
    import shutil
    import sqlite3
    from contextlib import closing

    path = tmp_path / f"{USER}.sqlite"
    shutil.copy(sample("sync-storm-nsys"), path)
    with closing(sqlite3.connect(path)) as db, db:
        secrets: list[Any] = [
            ("HOSTNAME", HOST),
            ("ENV:API_TOKEN", "s3cr3t"),
            ("COMMAND", f"/home/{USER}/train.py --token s3cr3t"),
        ]
        db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", secrets)
        db.execute("UPDATE PROCESSES SET name = ?", (f"/home/{USER}/venv/bin/python",))
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)", secrets)
    assert main([str(path), "--format", form]) == 0
    out = capsys.readouterr().out
    for word in (HOST, "s3cr3t", "Example/venv"):
        assert word not in out
