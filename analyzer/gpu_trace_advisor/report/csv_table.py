"""The kernel tables of all devices as comma-separated values (`--format csv`), for spreadsheets and scripts.

Times are ns, rates FLOP/s and bytes/s, shares fractions of 1; an empty cell is what is not known.
"""

from __future__ import annotations

import csv
import io

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.analysis.device_window import DeviceKey
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.roofline.kernel_table import KernelRow

FORMULA = ("=", "+", "-", "@")  # a spreadsheet computes what begins with these


def render(advice: Advice) -> str:
    """A head and a row for each operator, shape and kernel of each device."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*DeviceKey._fields, *KernelRow.__dataclass_fields__))
    writer.writerows([[_cell(value) for value in row] for row in advice.kernel_rows()])
    return text.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    told = shareable(value)
    return f"'{told}" if told.startswith(FORMULA) else told
