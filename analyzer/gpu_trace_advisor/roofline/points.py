"""The roofline of a window: each kernel's work against the device's peaks, and where the rest of its time went."""

from __future__ import annotations

import numpy as np

from gpu_trace_advisor.roofline.kernel_time import CAUSES, InKernel
from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.kernel_names import readable


@dataclass(frozen=True)
class Work:
    """Calls of one kernel on one problem size: a point of the roofline. Times are ns, summed over the calls."""

    name: str
    family: str
    dtype: str
    calls: int
    ns: int
    flops: float
    """Of one call; likewise `bytes`."""
    bytes: float
    bound: str
    """`compute` or `memory`: which of the two its ideal time rests on."""
    parts: dict[str, int]
    violated: int
    """Calls that were faster than the model allows."""

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def flops_per_s(self) -> float:
        return self.flops * self.calls / self.ns * 1e9 if self.ns else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes * self.calls / self.ns * 1e9 if self.ns else 0.0


def roofline(model: InKernel, start: int, end: int) -> list[Work]:
    """The modelled work of [start, end), one line for each kernel and problem size, longest first."""
    on, table = model.parts(start, end)
    known = model.modelled[on]
    on, table = on[known], table[known]
    kinds, trace = model.costs.kinds, model.timeline.trace
    key = model.costs.kind[on].astype(np.int64) * len(trace.names) + trace.name_code[model.timeline.row[on]]
    distinct, which, calls = np.unique(key, return_inverse=True, return_counts=True)
    sums = np.zeros((len(distinct), len(CAUSES)), np.int64)
    np.add.at(sums, which, table)
    part = np.bincount(which, model.costs.share[on], minlength=len(distinct))
    wrong = np.bincount(which, model.violated[on], minlength=len(distinct))
    compute, memory, _ = model.needs
    found = []
    for i, code in enumerate(distinct.tolist()):
        k, name = divmod(code, len(trace.names))
        share = float(part[i]) / int(calls[i])
        found.append(
            Work(
                readable(trace.names[name]),
                kinds[k].family,
                kinds[k].dtype,
                int(calls[i]),
                int(sums[i].sum()),
                kinds[k].flops * share,
                kinds[k].bytes * share,
                "compute" if compute[k] > memory[k] else "memory",
                {cause: int(ns) for cause, ns in zip(CAUSES, sums[i], strict=True) if ns},
                int(wrong[i]),
            )
        )
    return sorted(found, key=lambda work: (-work.ns, work.name))
