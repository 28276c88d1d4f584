"""README and pages say what is so: outputs, options, commands, links. No file names a place on somebody's machine."""

import re
import zlib
from pathlib import Path

import pytest

from tests.readme import GENERATED, MADE, PAGES, PICTURE, README, ROOT, advise, refreshed, shown

TEXT = README.read_text(encoding="utf-8")
ALL = {page: page.read_text(encoding="utf-8") for page in PAGES}
OUTPUTS = {arguments: text for page in ALL.values() for arguments, text in shown(page).items()}
MADE_PARTS = {match["name"]: match["text"] for text in ALL.values() for match in MADE.finditer(text)}
LONG_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])")
MACHINE_PATH = re.compile(rb"(?<![\w.~-])/(?:work|root|tmp)/\w")


def words(text: str) -> str:
    """A text without its line breaks and indentation, and with options spelled alike by all versions of argparse."""
    return re.sub(r"(-\w) (\S+), (--[\w-]+) \2", r"\1, \3 \2", " ".join(text.split()))


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_pages_show_what_the_command_writes(arguments: str) -> None:
    """`make docs` refreshes them."""
    assert words(OUTPUTS[arguments]) == words(advise(arguments))


@pytest.mark.parametrize("name", ["causes", "rules", pytest.param("transcript", marks=pytest.mark.mcp)])
def test_generated_parts_are_as_they_would_be_made_now(name: str) -> None:
    assert words(MADE_PARTS[name]) == words(GENERATED[name]())


def test_the_pages_show_the_help_and_a_report() -> None:
    assert "--help" in OUTPUTS
    assert any(arguments.startswith("traces/") for arguments in OUTPUTS)


def test_the_readme_is_read_in_five_minutes() -> None:
    """What is folded is read by those who open it."""
    unfolded = re.sub(r"<details>.*?</details>", "", TEXT, flags=re.DOTALL)
    assert len(unfolded.splitlines()) <= 220


def test_the_pages_explain_every_option_and_no_other() -> None:
    """Inline code counts, fenced blocks do not."""
    prose = re.sub(r"^```.*?^```$", "", (ROOT / "docs" / "options.md").read_text(encoding="utf-8"), flags=re.S | re.M)
    spans = re.findall(r"`(-[^`]+|advise [^`]+)`", prose)
    explained = {option for span in spans for option in LONG_OPTION.findall(span)}
    assert explained == set(LONG_OPTION.findall(advise("--help")))


def test_the_picture_is_small() -> None:
    assert 20_000 < PICTURE.stat().st_size <= 300_000


def test_no_paragraph_stands_twice() -> None:
    paragraphs = [
        " ".join(part.split())
        for text in ALL.values()
        for part in re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M).split("\n\n")
        if len(part) > 120
    ]
    assert len(set(paragraphs)) == len(paragraphs)


def test_outputs_are_refreshed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.readme.advise", lambda arguments: f"<{arguments}>\n")
    before = "a\n<!-- output of: advise --help -->\n```text\nold\n\nold\n```\nb\n```sh\nmake\n```\n"
    assert refreshed(before) == before.replace("old\n\nold", "<--help>")


def test_every_make_command_of_the_readme_is_a_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z]+)", TEXT, re.MULTILINE))
    assert {"demo", "check"} <= used <= targets


def test_every_target_says_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"^[a-z]+:(?!.* ## \w).*$", makefile, re.MULTILINE) == []


def test_every_link_leads_to_a_file() -> None:
    for page, text in ALL.items():
        links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name
    assert "](docs/" in TEXT


def test_every_link_inside_a_page_leads_to_a_heading() -> None:
    for page, text in ALL.items():
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors, page.name


def test_no_file_names_a_place_on_a_machine(project_files: list[Path]) -> None:
    """Compressed traces and databases are searched too."""
    found = []
    for path in project_files:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = zlib.decompressobj(wbits=31).decompress(data)
        if place := MACHINE_PATH.search(data):
            line = data.count(b"\n", 0, place.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}")
    assert found == []
