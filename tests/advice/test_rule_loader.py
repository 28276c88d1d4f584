"""Somebody's own rules: whatever is wrong with one is a line beside the findings of the others."""

import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import gpu_trace_advisor.rules
import pytest
from gpu_trace_advisor.advice.rule_loader import find_rules
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.runtime import guarded

GOOD = '''
from gpu_trace_advisor.rulekit.rule import Claim, case, rule

LOADING = """
    step |.........
    host DDDDD.a.b.
    s7   .......aabb
    repeat: 4
    scale: 100us
"""
BUSY = """
    step |.........
    host ab........
    s7   .aaaaabbbb
    repeat: 4
    scale: 100us
"""

@rule(
    title="Idle before anything else",
    cites=("https://example.org/why",),
    fires=(case(LOADING, "The loader takes half of the step."),),
    quiet=(case(BUSY, "The device is busy."),),
)
def mine(view):
    idle = view.causes.get("dataloader", 0)
    if idle > 0.3 * view.window.wall_ns:
        yield Claim(message=f"{idle} ns idle.", ns=idle, how="Look at the loader.")
'''

FAULTS = {
    "needs": ("@rule(title='x', needs=('shape',))\ndef own(view):\n    yield from ()", "needs shape: expected host,"),
    "phases": ("@rule(title='x', phases=('evaluation',), because='https://example.org')\ndef own(view):\n    yield from ()",
               "phases evaluation: expected"),
    "cites": ("@rule(title='x', cites=('my-own-idea',))\ndef own(view):\n    yield from ()", "cites 'my-own-idea'"),
    "because": ("@rule(title='x', phases=('decode',), because='no-such-key')\ndef own(view):\n    yield from ()",
                "cites 'no-such-key'"),
    "a built-in id": ("@rule(title='x')\ndef dataloader(view):\n    yield from ()", "a built-in rule has this id"),
    "syntax": ("def own(view:\n", "SyntaxError"),
    "import": ("import no_such_module\n", "ModuleNotFoundError"),
    "a loop without end": ("def f():\n    f()\nf()\n", "RecursionError"),
    "not a claim": ("@rule(title='x')\ndef own(view):\n    yield 'idle'", "TypeError: a rule yields Claims, not str"),
    "a claim about less than nothing": (
        "@rule(title='x')\ndef own(view):\n    yield Claim(message='1', ns=-5, how='x')", "ns=-5: expected nanoseconds"),
    "a claim about a fraction": (
        "@rule(title='x')\ndef own(view):\n    yield Claim(message='1', ns=0.5, how='x')", "ns=0.5: expected nanoseconds"),
    "asking": ("@rule(title='x')\ndef own(view):\n    raise KeyError('Input Dims')\n    yield", "KeyError: 'Input Dims'"),
    "no generator": ("@rule(title='x')\ndef own(view):\n    return None", "TypeError"),
    "pricing": (
        "from gpu_trace_advisor.replay.fixes import FIXES\nfrom dataclasses import replace\n"
        "def broken(graph):\n    raise IndexError('no such edge')\n"
        "@rule(title='x')\ndef own(view):\n"
        "    fix = replace(FIXES['host-sync'], low=broken, high=broken)\n"
        "    yield Claim(message='1', ns=view.window.wall_ns, how='x', fix=fix)", "IndexError: no such edge"),
    "refusing": (
        "from gpu_trace_advisor.replay.fixes import FIXES\nfrom dataclasses import replace\n"
        "def broken(graph):\n    raise IndexError('no such edge')\n"
        "@rule(title='x')\ndef own(view):\n"
        "    fix = replace(FIXES['host-sync'], refuses=broken)\n"
        "    yield Claim(message='1', ns=view.window.wall_ns, how='x', fix=fix)", "IndexError: no such edge"),
    **{f"raises {kind}": (f"@rule(title='x')\ndef own(view):\n    raise {kind}('so it ends')\n    yield", f"{kind}: so it ends")
       for kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "RecursionError", "MemoryError", "BaseException")},
    **{f"raises {kind} at import": (f"raise {kind}('so it ends')", f"{kind}: so it ends")
       for kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "MemoryError")},
    "a check without end": ("@rule(title='x')\ndef own(view):\n    yield from own.check(view)", "RecursionError"),
    "an error that cannot be told": (
        "class Mute(Exception):\n    def __str__(self):\n        raise self\n"
        "@rule(title='x')\ndef own(view):\n    raise Mute\n    yield", "Mute"),
    "a pattern that takes for ever": (
        "import re\n@rule(title='x')\ndef own(view):\n    re.match('(a+)+$', 'a' * 60 + 'b')\n    yield",
        "TookTooLong: not done after 0.5 s"),
    "a loop that takes for ever": ("@rule(title='x')\ndef own(view):\n    while True:\n        pass\n    yield",
                                   "TookTooLong: not done after 0.5 s"),
    "an import that takes for ever": ("while True:\n    pass", "TookTooLong: not done after 0.5 s"),
    "a fix that ends everything": (
        "from gpu_trace_advisor.replay.fixes import FIXES\nfrom dataclasses import replace\n"
        "def broken(graph):\n    raise SystemExit(7)\n"
        "@rule(title='x')\ndef own(view):\n"
        "    fix = replace(FIXES['host-sync'], low=broken, high=broken)\n"
        "    yield Claim(message='1', ns=view.window.wall_ns, how='x', fix=fix)", "SystemExit: 7"),
}  # fmt: skip
"""What is wrong -> the file, and what is said of it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    return tmp_path


def test_a_rule_of_ones_own_is_tested_by_its_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules", str(folder), "--test-rules"]) == 0
    assert capsys.readouterr().out == "mine: ok, 2 cases\n"


def test_a_case_that_differs_is_told_with_its_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swapped = GOOD.replace("case(LOADING", "case(X").replace("case(BUSY", "case(LOADING").replace("case(X", "case(BUSY")
    (folder / "good.py").write_text(swapped, encoding="utf-8")
    assert main(["--rules", str(folder), "--test-rules"]) == 1
    head, fires, quiet = capsys.readouterr().out.splitlines()
    assert head == "mine: failed, 2 cases"
    assert fires.startswith("  fires 1 (The loader takes half of the step): it did not fire: nothing of the kind")
    assert quiet.startswith("  quiet 1 (The device is busy): it fired: ")


def test_a_drawing_that_is_none_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.py").write_text(GOOD.replace("host ab....", "host ?b...."), encoding="utf-8")
    assert main(["--rules", str(folder), "--test-rules"]) == 1
    assert "  quiet 1 (The device is busy): " in capsys.readouterr().out


def test_the_page_of_ones_own_rule_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules", str(folder), "--explain", "mine"]) == 0
    page = capsys.readouterr().out
    assert "It fires: The loader takes half of the step." in page
    assert "It stays quiet: The device is busy." in page
    assert "https://example.org/why" in page


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_beside_the_findings_of_the_others(
    fault: str,
    folder: Path,
    sample: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, says = FAULTS[fault]
    if "for ever" in fault:
        monkeypatch.setattr(guarded, "LONGEST_S", 0.5)
    (folder / "own.py").write_text(
        "from gpu_trace_advisor.rulekit.rule import Claim, rule\n" + source, encoding="utf-8"
    )
    assert main([str(sample("training-dataloader")), "--rules", str(folder), "--format", "json"]) == 0
    out = capsys.readouterr().out
    advice = json.loads(out)
    (error,) = advice["errors"]
    assert says in error
    assert "\n" not in error
    assert {finding["rule"] for finding in advice["findings"]} >= {"mine", "dataloader"}


def test_a_built_in_rule_is_not_replaced(folder: Path) -> None:
    (folder / "own.py").write_text(
        "from gpu_trace_advisor.rulekit.rule import rule\n@rule(title='mine')\ndef dataloader(view):\n    yield from ()\n",
        encoding="utf-8",
    )
    rules, errors = find_rules(folder)
    assert next(rule for rule in rules if rule.id == "dataloader").title == "The data loader does not keep up"
    assert len(errors) == 1


@pytest.mark.parametrize("fault", ["asking", "pricing", "refusing", "raises SystemExit", "a fix that ends everything"])
def test_a_fault_does_not_end_what_if(
    fault: str, folder: Path, sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, says = FAULTS[fault]
    (folder / "own.py").write_text(
        "from gpu_trace_advisor.rulekit.rule import Claim, rule\n" + source,
        encoding="utf-8",
    )
    trace = str(sample("training-dataloader"))
    assert main([trace, "--rules", str(folder), "--what-if", "own,dataloader"]) == 0
    assert f"the rule failed: {says}" in " ".join(capsys.readouterr().out.split())


def test_the_rule_in_the_guide_works_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guide = inspect.getdoc(gpu_trace_advisor.rules) or ""
    example = guide[guide.index("    from collections.abc") : guide.index("Then, with it in")]
    (tmp_path / "layout_copies.py").write_text(textwrap.dedent(example), encoding="utf-8")
    assert main(["--rules", str(tmp_path), "--test-rules"]) == 0
    assert capsys.readouterr().out == "layout-copies: ok, 2 cases\n"
