"""Nothing that is printed commands a terminal or a CI."""

import json
import sys
import unicodedata

import pytest
from gpu_trace_advisor.sanitize import CI_VARIABLES, clean, json_text, printable

HOSTILE = (
    "\x1b]0;title\x07", "\x1b[31mred", "\x1bPq#0\x1b\\", "\x9b31m", "bell\x07", "a\rb", "a\u2028b", "a\u2029b",
    "\u202eright to left", "zero\u200bwidth", "\ud800", "tag\U000e0041", "null\0",
)  # fmt: skip
COMMANDS = ("::stop-commands::x", "  ::error::x", "##[error]x", "a ##vso[task.setvariable]x", "##teamcity[x]")


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CI_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def harmless(text: str) -> bool:
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n" for c in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_obeys_is_gone(text: str) -> None:
    assert harmless(printable(f"before {text} after\n"))
    assert harmless(clean(text)) and "\n" not in clean(f"{text}\n{text}")
    assert harmless(json_text({text: [text]}, indent=None))
    assert json.loads(json_text(text)) == text.replace("\ud800", "\ufffd")


def test_its_own_colours_stay_where_they_are_wanted() -> None:
    text = "\x1b[1;36mHEAD\x1b[0m \x1b]0;x\x07\n"
    assert printable(text, color=True) == "\x1b[1;36mHEAD\x1b[0m \n"
    assert printable(text) == "HEAD \n"


@pytest.mark.parametrize("variable", CI_VARIABLES)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_ci_obeys_is_broken(command: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printable(f"x\n{command}\n") == f"x\n{command}\n"
    monkeypatch.setenv(variable, "true")
    told = printable(f"x\n{command}\n")
    assert "##" not in told and not any(line.lstrip().startswith("::") for line in told.splitlines())
    assert told.replace(" ", "") == f"x\n{command}\n".replace(" ", "")


@pytest.mark.parametrize("command", COMMANDS[2:])
def test_commands_that_are_meant_stay_and_those_within_do_not(command: str) -> None:
    assert printable(f"::error title=x::{command}\n", commands=True).startswith("::error title=x::")
    assert "##" not in printable(f"::error title=x::{command}\n", commands=True)
    assert json.loads(json_text(command)) == command and "##" not in json_text(command)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_json_has_no_words_for_numbers(number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        json_text([number])


def test_nothing_printed_is_a_control_or_a_format_character() -> None:
    """Of all of Unicode; this Python's own table is the measure."""
    every = "".join(
        c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")
    )
    assert set(printable(every)) == {" ", "\n"}
    written = json_text(every.replace("\n", ""))
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp") for c in written)
