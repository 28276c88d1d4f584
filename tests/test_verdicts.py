from pathlib import Path

from tests.verdicts import block, recordings

TRACES = Path(__file__).parents[1] / "traces"


def test_a_block_has_the_headline_the_causes_and_what_a_finding_names_and_saves() -> None:
    path = next(path for path in recordings(TRACES) if path.name.startswith("training-dataloader.json"))
    lines = block(path, TRACES).splitlines()
    assert lines[0] == f"## {path.name}"
    assert lines[1].startswith("GPU busy ")
    assert "dataloader" in lines[2]
    assert lines[3].startswith("  1. dataloader [")
    assert " names " in lines[3]
    assert " saves " in lines[3]


def test_what_is_no_recording_is_told_in_its_block(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    assert [path.name for path in recordings(tmp_path)] == ["broken.json"]
    assert "broken.json" in block(tmp_path / "broken.json", tmp_path).splitlines()[1]
