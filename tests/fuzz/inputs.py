"""What the fuzzer gives to the program: files and arguments, made from a seed, by kind."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.build import call, copy, event, frame, kernel, memset, op, step, sync
from tests.hostile import NUMBERS, TEXTS, any_value, damaged_bytes, mutated

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Input:
    """Files by name, the arguments that name them, and through what they go: `advise`, `readers`, `saved` or `text`."""

    kind: str
    through: str
    files: dict[str, bytes]
    arguments: tuple[str, ...]


def program(rng: random.Random) -> dict[str, Any]:
    """A small recording of the profiler in which much of what there can be is: its document."""
    events: list[Any] = [
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 1, "args": {"name": "main"}},
    ]
    count, devices, streams = rng.randint(1, 4), rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 2, 4))
    names = (
        "ampere_sgemm_128x64_tn",
        "vectorized_elementwise_kernel",
        "flash_fwd_kernel",
        "ncclDevKernel_AllReduce_Sum_f32",
    )
    correlation = 0
    for i in range(count):
        at = 1000 * i
        events.append(step(i, at, at + 1000))
        events.append(frame("train.py(12): train", at + 1, at + 900))
        for k in range(rng.randint(1, 5)):
            correlation += 1
            begin = at + 20 + 150 * k
            where: dict[str, Any] = {"device": rng.randrange(devices), "stream": 7 + rng.randrange(streams)}
            shapes: dict[str, Any] = {
                "Input Dims": "[[64, 128], [128, 64]]",
                "Input type": '["float", "float"]',
                "External id": correlation,
            }
            events.append(op(rng.choice(("aten::mm", "aten::add", "aten::copy_")), begin, begin + 60, **shapes))
            if rng.random() < 0.2:
                events += [call(begin + 5, begin + 30, correlation, "cudaMemcpyAsync"),
                           copy(begin + 40, begin + 90, correlation, **where, bytes=4096)]  # fmt: skip
            else:
                more: dict[str, Any] = {
                    "grid": "[8, 1, 1]",
                    "block": "[128, 1, 1]",
                    "registers per thread": 32,
                    "External id": correlation,
                }
                length = rng.choice((20, 60, 200))
                events += [call(begin + 5, begin + 15, correlation),
                           kernel(begin + 30, begin + 30 + length, correlation, rng.choice(names), **where, **more)]  # fmt: skip
        events.append(rng.choice((
            sync(at + 800, at + 950), memset(at + 700, at + 710), event("cuda_sync", "Event Sync", at + 800, at + 850, stream=7),
            {"ph": "i", "s": "t", "name": "[memory]", "pid": 100, "tid": 1, "ts": at + 5,
             "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 1, "Total Allocated": 512, "Total Reserved": 1024}},
            op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 950, at + 999),
        )))  # fmt: skip
    return {
        "schemaVersion": 1, "baseTimeNanoseconds": 1759300074000000000, "record_shapes": 1, "with_stack": 1,
        "deviceProperties": [{"id": d, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108, "totalGlobalMem": 42 << 30,
                              "computeMajor": 8, "computeMinor": 0} for d in range(devices)],
        "traceEvents": events,
    }  # fmt: skip


def encoded(document: Any, rng: random.Random) -> bytes:
    """JSON text as one of the writers lays it out."""
    indent, ascii_only = rng.choice((None, None, 1)), rng.random() < 0.5
    return json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


REQUESTS = (
    (), (), (), ("--window", "all"), ("--window", "gpu"), ("--steps", "0-2"), ("--device", "0"), ("--what-if", "dataloader"),
    ("--phase", "decode", "--price", "2", "--weights", "14GB"), ("--window", "0:1.5"), ("--hardware", "h100-sxm"),
)  # fmt: skip


def json_structure(rng: random.Random) -> Input:
    data = encoded(mutated(program(rng), rng, 6), rng)
    return Input("JSON by structure", "advise", {"a.json": data}, ("a.json", *rng.choice(REQUESTS)))


def json_bytes(rng: random.Random) -> Input:
    data = damaged_bytes(encoded(program(rng), rng), rng)
    if rng.random() < 0.2:
        data = damaged_bytes(gzip.compress(data), rng) if rng.random() < 0.5 else gzip.compress(data)
    return Input("JSON by bytes", "advise", {"a.json": data}, ("a.json", *rng.choice(REQUESTS)))


def two_readers(rng: random.Random) -> Input:
    document = program(rng)
    data = encoded(mutated(document, rng, 4), rng)
    return Input(
        "two readers", "readers", {"a.json": damaged_bytes(data, rng) if rng.random() < 0.7 else data}, ("a.json",)
    )


def ranks(rng: random.Random) -> Input:
    files = {}
    for rank in range(rng.randint(2, 4)):
        document = {
            **program(rng),
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": rng.choice((2, 4, any_value(rng)))},
        }
        for one in document["traceEvents"]:
            if "nccl" in one.get("name", ""):
                one["args"] |= {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 4,
                                "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}  # fmt: skip
        files[f"rank{rank}.json"] = encoded(mutated(document, rng, 3) if rng.random() < 0.8 else document, rng)
    return Input("ranks", "advise", files, (*files, *rng.choice(REQUESTS)))


SQLITE = ("sync-storm-nsys.sqlite", "multi-stream-events-nsys.sqlite", "graph-decode-nsys.sqlite")


def sqlite(rng: random.Random) -> Input:
    """A sample cut to a few rows, then damaged: its tables and columns, its values, or its pages."""
    how = rng.choice(("schema", "values", "values", "pages"))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        path.write_bytes(_small_export(rng.choice(SQLITE)))
        if how != "pages":
            with closing(sqlite3.connect(path)) as db, db:
                for _ in range(rng.randint(1, 5)):
                    try:
                        (_schema if how == "schema" else _values)(db, rng)
                    except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                        continue
        data = path.read_bytes()
    data = damaged_bytes(data, rng) if how == "pages" else data
    return Input(f"SQLite by {how}", "advise", {"a.sqlite": data}, ("a.sqlite", *rng.choice(REQUESTS)))


_EXPORTS: dict[str, bytes] = {}


def _small_export(name: str) -> bytes:
    """Each table's first rows of a sample."""
    if name not in _EXPORTS:
        with TemporaryDirectory() as folder:
            path = Path(folder) / name
            shutil.copy(ROOT / "traces" / name, path)
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                for table in _tables(db):
                    if table.startswith("CUPTI") or table == "NVTX_EVENTS":
                        db.execute(f'DELETE FROM "{table}" WHERE rowid > 60')
                db.execute("VACUUM")
            _EXPORTS[name] = path.read_bytes()
    return _EXPORTS[name]


def _tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def _schema(db: sqlite3.Connection, rng: random.Random) -> None:
    table = rng.choice(_tables(db))
    column = rng.choice(_columns(db, table))
    strange = rng.choice(TEXTS).replace('"', "") or "x"
    db.execute(rng.choice((
        f'DROP TABLE "{table}"', f'ALTER TABLE "{table}" DROP COLUMN "{column}"', f'DELETE FROM "{table}"',
        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{strange}"', f'ALTER TABLE "{table}" RENAME TO "{strange}"',
        f'CREATE TABLE "{strange}" (x)', f'CREATE VIEW "v{strange}" AS SELECT * FROM "{table}"',
        f'INSERT INTO "{table}" SELECT * FROM "{table}"',
    )))  # fmt: skip


def _values(db: sqlite3.Connection, rng: random.Random) -> None:
    table = rng.choice(_tables(db))
    column = rng.choice(_columns(db, table))
    value: Any = rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS), None, b"\xff\0blob", 1.5))
    chosen = rng.choice(("", f" WHERE rowid % {rng.randint(2, 9)} = 0", f" WHERE rowid = {rng.randint(1, 60)}"))
    db.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{chosen}', (value,))


OPTIONS = (
    "--window", "--steps", "--step-marker", "--device", "--rank", "--what-if", "--phase", "--hardware", "--weights",
    "--objective", "--price", "--batch", "--prompt-tokens", "--output-tokens", "--format", "--rules", "--explain", "--against",
    "--budget", "--limit",
)  # fmt: skip
VALUES = (
    *TEXTS, *map(str, NUMBERS), "0:1", "1:0", "0-9999999999", "1,2,3", "9" * 50, "(a+)+$", "[", "(?P<x>", "steps", "gpu", "all",
    "text", "json", "html", "markdown", "sarif", "perfetto", "github", "gitlab", "csv",
    "dataloader", "cuda-graphs,host-sync", "14GB", "1e9GB",
    "latency",
    "decode", "a.json", ".", "/dev/null", "nowhere/x",
)  # fmt: skip


def options(rng: random.Random) -> Input:
    given = ["a.json"]
    for _ in range(rng.randint(1, 4)):
        given += [rng.choice(OPTIONS), rng.choice(VALUES)]
    rng.shuffle(given) if rng.random() < 0.1 else None
    return Input("options", "main", {"a.json": encoded(program(rng), rng)}, tuple(given))


BUDGET = """level = "error"
unknown = "ok"
aggregate = "median"
[limits]
idle = "10%"
launch-overhead = "0.5 ms"
launches = 200
busy = {min = "80%", level = "warn"}
"replay.error" = 0.1
[device.0]
exposed-communication = "5%"
peak-allocated = "2 GiB"
"""


def budget(rng: random.Random) -> Input:
    data = damaged_bytes(BUDGET.encode(), rng)
    for _ in range(rng.randint(0, 2)):
        old = rng.choice(('"10%"', "200", "limits", "idle", '"2 GiB"', "0.1", "device.0", '"80%"'))
        data = data.replace(
            old.encode(), rng.choice((*VALUES, "nan", "inf", "{}", "[[]]")).encode("utf-8", "surrogatepass")
        )
    return Input("budgets", "saved", {"b.toml": data}, ("--budget", "b.toml"))


def saved(rng: random.Random) -> Input:
    from tests.fuzz.checks import saved_forms

    kind, document = rng.choice(saved_forms())
    data = encoded(mutated(document, rng, 4), rng)
    data = damaged_bytes(data, rng) if rng.random() < 0.2 else data
    return Input(kind, "saved", {"before.json": data}, ("--against", "before.json"))


RULE = '''from gpu_trace_advisor.rulekit.rule import Claim, rule

@rule(title={title!r}, cites={cites!r})
def {name}(view):
    """{title_text}"""
    yield Claim(message={message!r}, ns={ns!r}, how={how!r})
'''


def rules(rng: random.Random) -> Input:
    text = RULE.format(
        title=rng.choice((*TEXTS, any_value(rng))), cites=rng.choice(((), ("nothing",), 3, any_value(rng))),
        name=rng.choice(("mine", "dataloader")),
        title_text="What it costs.", message=rng.choice((*TEXTS, any_value(rng))), ns=any_value(rng),
        how=rng.choice((*TEXTS, any_value(rng))),
    )  # fmt: skip
    text = text.replace("=inf", "=float('inf')").replace("=nan", "=float('nan')")
    data = text.encode("utf-8", "surrogatepass")
    data = damaged_bytes(data, rng) if rng.random() < 0.3 else data
    files = {"a.json": encoded(program(rng), rng), "rules/mine.py": data}
    return Input("rules", "advise", files, ("a.json", "--rules", "rules"))


def texts(rng: random.Random) -> Input:
    """Every name in the recording is hostile, the file's too."""
    document = program(rng)
    for one in document["traceEvents"]:
        if rng.random() < 0.5:
            one["name"] = one["name"] + rng.choice(TEXTS) if rng.random() < 0.5 else rng.choice(TEXTS)
        for key in list(one.get("args", {})):
            if isinstance(one["args"][key], str) and rng.random() < 0.2:
                one["args"][key] = rng.choice(TEXTS)
    document["deviceProperties"][0]["name"] = rng.choice(TEXTS)
    name = "".join(c for c in rng.choice(TEXTS)[:60] if c not in "/\0\ud800") + ".json"
    return Input("texts", "advise", {name: encoded(document, rng)}, (f"./{name}",))


def cleaners(rng: random.Random) -> Input:
    text = "".join(
        rng.choice(TEXTS) if rng.random() < 0.5 else chr(rng.randrange(0x11000)) for _ in range(rng.randint(1, 12))
    )
    return Input("cleaners", "text", {}, (text,))


KINDS: dict[str, tuple[int, Callable[[random.Random], Input]]] = {
    "structure": (10, json_structure), "bytes": (10, json_bytes), "ranks": (4, ranks), "sqlite": (6, sqlite),
    "options": (5, options), "rules": (2, rules), "texts": (4, texts),
    "readers": (100, two_readers), "budget": (100, budget), "saved": (40, saved), "cleaners": (130, cleaners),
}  # fmt: skip
"""What there is, and how often of each 411 inputs: a tenth goes through the whole program, which takes most of the time."""
