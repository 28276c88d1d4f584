"""The table of causes: complete, and one vocabulary for everything that prints them."""

import pytest
from gpu_trace_advisor.attribution.causes import BUSY, CATEGORIES, CAUSES, IDLE, label, phrase


def test_every_cause_is_described() -> None:
    for cause in CAUSES.values():
        assert cause.when in ("compute", "communication", "copy", "idle")
        assert cause.label and cause.phrase and cause.meaning.endswith(".") and cause.measured.endswith(".")
        assert cause.measured.startswith(("Measured", "Modelled"))


def test_every_category_has_causes() -> None:
    assert {cause.category for cause in CAUSES.values()} == set(CATEGORIES)


def test_labels_are_distinct_and_fit_a_column() -> None:
    labels = [cause.label for cause in CAUSES.values()]
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 32


def test_idle_causes_fit_in_a_byte_with_side_and_grade() -> None:
    assert {*BUSY, *IDLE} == set(CAUSES)
    assert len(IDLE) * 6 - 1 <= 127


@pytest.mark.parametrize(
    ("cause", "detail", "row", "sentence"),
    [
        ("exposed-copy", "HtoD pageable", "exposed copies HtoD pageable", "HtoD pageable copies that no kernel hides"),
        ("exposed-copy", "", "exposed copies", "copies that no kernel hides"),
        ("host-sync", "blocking copy", "host sync: blocking copies", "the GPU drained by blocking copies"),
        ("host-sync", "sync", "host sync: GPU queue drained", "the GPU drained by synchronizations"),
    ],
)
def test_details_are_part_of_the_name(cause: str, detail: str, row: str, sentence: str) -> None:
    assert label(cause, detail) == row
    assert phrase(cause, detail) == sentence
