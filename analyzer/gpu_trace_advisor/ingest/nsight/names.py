"""Names of calls, waits, copies and overhead as Kineto gives them, so that one classifier serves both formats."""

from __future__ import annotations

import re

COPIES = {
    0: "UNKNOWN", 1: "HTOD", 2: "DTOH", 3: "HTOA", 4: "ATOH", 5: "ATOA", 6: "ATOD", 7: "DTOA", 8: "DTOD", 9: "HTOH",
    10: "PTOP", 11: "UVM_HTOD", 12: "UVM_DTOH", 13: "UVM_DTOD",
}  # fmt: skip
MEMORIES = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static",
    7: "Unknown",
}  # fmt: skip
OVERHEADS = {
    2: "Driver Compiler", 3: "Buffer Flush", 4: "Instrumentation", 5: "Resource",
    6: "Runtime Triggered Module Loading", 7: "Lazy Function Loading", 8: "Command Buffer Full",
}  # fmt: skip
SYNCS = (
    ("StreamWaitEvent", "Stream Wait Event"), ("EventSynchronize", "Event Sync"), ("EventQuery", "Event Query"),
    ("StreamQuery", "Stream Query"), ("StreamSynchronize", "Stream Sync"), ("DeviceSynchronize", "Context Sync"),
    ("CtxSynchronize", "Context Sync"), ("ThreadSynchronize", "Context Sync"),
)  # fmt: skip
API_VERSION = re.compile(r"_v\d{4,}$")  # cudaLaunchKernel_v7000; the _v2 of cuMemcpyHtoDAsync_v2 is part of the name


class Names:
    """Distinct strings and the code of each."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        code = self._codes.setdefault(text, len(self.strings))
        if code == len(self.strings):
            self.strings.append(text)
        return code


def without_version(api: str) -> str:
    """`cudaLaunchKernel` for `cudaLaunchKernel_v7000`."""
    return API_VERSION.sub("", api)


def sync_name(api: str) -> str:
    """Kineto's name for the wait that this call makes."""
    return next((name for part, name in SYNCS if part in api), "Sync")


def copy_name(kind: str, source: str | None, target: str | None) -> str:
    """Kineto's name of a copy: `Memcpy HtoD (Pageable -> Device)`; of managed memory that migrates, `(Unified)`."""
    unified = kind.startswith("UVM_")
    short = re.sub(r"^([A-Z])TO([A-Z])$", r"\1to\2", kind.removeprefix("UVM_"))
    name = f"Memcpy {short}" if short not in ("", "UNKNOWN") else "Memcpy"
    if unified:
        return f"{name} (Unified)"
    return f"{name} ({source or 'Unknown'} -> {target or 'Unknown'})" if source or target else name


def memory_name(name: str) -> str:
    """`Device Static` for `CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC`."""
    return name.rpartition("KIND_")[2].replace("_", " ").title()


def overhead_name(name: str) -> str:
    """`Lazy Function Loading` for `OVERHEAD_LAZY_FUNCTION_LOADING`; "" for an unknown kind."""
    short = name.removeprefix("OVERHEAD_").removeprefix("CUPTI_")
    return "" if short in ("UNDEFINED", "UNKNOWN") else short.replace("_", " ").title()
