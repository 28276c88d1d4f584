"""Numbers that others wrote are read as what they are, or not at all."""

import pytest
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.units import read_count, read_size


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), (b"7", 7), ("9" * 18, 10**18 - 1), ("", None), ("-1", None), ("1_0", None), (" 1", None),
     ("01²2", None), ("٣", None), ("9" * 19, None), ("1" * 5000, None)],
)  # fmt: skip
def test_a_count_is_plain_digits(text: str | bytes, number: int | None) -> None:
    assert read_count(text) == number


@pytest.mark.parametrize(
    ("text", "size"), [("14GB", 14 * 10**9), ("1.5 KiB", 1536), ("7", 7), ("8191 PB", None), ("9" * 20, None)]
)
def test_a_size_is_one_that_can_be_counted(text: str, size: int | None) -> None:
    if size is not None:
        assert read_size(text) == size
        return
    with pytest.raises(BadUsage, match="expected a size such as 14GB"):
        read_size(text)
