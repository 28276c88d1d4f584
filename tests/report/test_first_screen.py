"""The first screen: what a reader has to know, on one screen, whatever the recording."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_trace_advisor import NothingToAnalyse, advise
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.report.text.first_screen import render
from gpu_trace_advisor.report.text.terminal import columns
from gpu_trace_advisor.rulekit.rule import Finding
from gpu_trace_advisor.trace.model import Note

from tests.advices import MS, advice, device, host

LONGEST = 56
"""Lines: a screen of about 40, and what long names and advice add."""


def finding(number: int, saving: tuple[int, int] | None = (10 * MS, 20 * MS), **changes: object) -> Finding:
    fields: dict[str, object] = {
        "rule": f"rule-{number}", "title": f"Fault {number}", "message": f"It takes {number} ms. More of it.",
        "file": "run.json", "rank": None, "process": None, "device": 0, "ns": 30 * MS, "named": (), "saving_ns": saving,
        "alone_ns": saving, "speedup": (1.1, 1.2) if saving else None, "unpriced": "" if saving else "nobody knows",
        "grade": "modelled", "confidence": "high", "doubts": (), "evidence": (), "formula": "", "assumes": (),
        "sources": (), "how": f"Change {number}.", "verify": "",
    }  # fmt: skip
    return Finding(**{**fields, **changes})  # type: ignore[arg-type]


def shown(*args: object, width: int = 80, top: int = 3, **changes: object) -> list[str]:
    return render(advice(*args, **changes), color=False, width=width, top=top).splitlines()  # type: ignore[arg-type]


def test_a_change_has_its_rule_a_best_guess_a_range_and_what_to_do() -> None:
    lines = shown(device(), findings=(finding(1),))
    at = lines.index("  1. Fault 1 [rule-1]")
    assert lines[at + 1 : at + 4] == [
        "     Saves about 15.0 % (15.0 ms); range 10.0 ms to 20.0 ms (modelled).",
        "     It takes 1 ms.",
        "     Do: Change 1.",
    ]


def test_a_range_of_one_number_is_one_number() -> None:
    assert "     Saves 10.0 % (10.0 ms) (modelled)." in shown(device(), findings=(finding(1, (10 * MS, 10 * MS)),))


def test_a_wide_range_says_why() -> None:
    wide = finding(1, (1 * MS, 40 * MS), assumes=("pessimistic: half of it", "optimistic: all of it"))
    assert "Wide: optimistic: all of it." in " ".join(" ".join(shown(device(), findings=(wide,))).split())


def test_what_has_no_saving_says_why() -> None:
    assert "     No saving computed: nobody knows." in shown(device(), findings=(finding(1, None),))


def test_why_there_is_no_saving_is_said_once() -> None:
    found = tuple(finding(number, None, unpriced="too little is known") for number in (1, 2))
    lines = shown(device(), findings=found)
    assert [line.strip() for line in lines if "No saving computed" in line] == [
        "No saving computed: too little is known.",
        "No saving computed: for the same reason.",
    ]


def test_three_changes_and_how_to_see_the_others() -> None:
    text = "\n".join(shown(device(), findings=tuple(map(finding, range(1, 6)))))
    assert "  3. Fault 3" in text and "  4. Fault 4" not in text
    assert "2 more (rule-4, rule-5): -v." in text
    assert "  5. Fault 5" in "\n".join(shown(device(), top=5, findings=tuple(map(finding, range(1, 6)))))


def test_what_limits_the_answer_stands_under_the_verdict() -> None:
    notes = (Note("profiler-stacks", "stacks cost time", 1), Note("partial", "the file ends early", 1))
    lines = shown(device(), health=notes, errors=("rank1.json: no trace",))
    before = lines[: lines.index(next(line for line in lines if line.startswith("WHERE")))]
    assert "  Not read: rank1.json: no trace" in before
    assert "  Limit: the file ends early" in before
    assert not any("stacks cost time" in line for line in lines)


def test_the_phase_is_told_or_asked_for() -> None:
    assert any("· decode ·" in line for line in shown(device(), phase=("decode", "engine annotations")))
    assert "phase unknown (nothing tells; --phase tells it)" in " ".join(
        shown(device(), phase=("unknown", "nothing tells"))
    )


def test_a_recording_of_the_host_alone_says_how_to_record_the_gpu_first() -> None:
    lines = shown(host=host())
    heads = [line.split("  ")[0] for line in lines if re.match(r"[A-Z]{2}[A-Z ]+", line) and not line.startswith("GPU")]
    assert heads[:3] == ["TO RECORD THE GPU", "RANGES", "OPERATORS"]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(
        device(name="x" * 300), width=width, findings=tuple(finding(n, message="m" * 500 + ".") for n in range(4))
    )
    assert max(map(columns, lines)) <= width


def test_what_makes_an_answer_doubtful_is_told_on_standard_error_too(
    sample: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = gzip.decompress(sample("training-dataloader").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: int(0.9 * len(whole))])
    assert main([str(cut)]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("advise: warning: ")
    limits = [line for line in told.out.splitlines()[:12] if line.startswith("  Limit: ")]
    assert limits


def test_everything_is_there_with_v(sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(sample("training-dataloader"))
    main([trace])
    first = capsys.readouterr().out
    main([trace, "-v"])
    whole = capsys.readouterr().out
    main([trace, "-v", "--top", "1"])
    short = capsys.readouterr().out
    assert "KERNELS" not in first and "KERNELS" in whole
    assert len(first.splitlines()) < len(short.splitlines()) < len(whole.splitlines())


@pytest.mark.real
def test_any_recording_fits_one_screen(real_traces: Path) -> None:
    folder = real_traces / "traces"
    places = [p for p in sorted(folder.glob("*/*")) if p.is_dir() or p.name.endswith((".gz", ".sqlite"))]
    assert len(places) > 30
    for place in places:
        try:
            lines = render(advise(place), color=False, width=80).splitlines()
        except NothingToAnalyse:  # an accelerator that is not read
            continue
        assert len(lines) <= LONGEST, (place.name, len(lines))
        assert max(map(columns, lines)) <= 80, place.name
        numbered = [line for line in lines if re.match(r"  \d\. ", line)]
        assert len(numbered) <= 3 and sum(line.startswith("     Do: ") for line in lines) == len(numbered), place.name
