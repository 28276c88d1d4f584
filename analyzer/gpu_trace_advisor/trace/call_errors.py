"""Runtime calls that returned an error, where the recorder keeps what calls return (Nsight Systems)."""

from __future__ import annotations

import re

import numpy as np

from gpu_trace_advisor.trace.lookup import named
from gpu_trace_advisor.trace.model import Int64, Trace

RETURNED = "return value"
"""Name of the column in `Trace.integers`; only what is not 0 is kept."""

# cudaError_t of the CUDA runtime API (driver_types.h); the driver API's CUresult has the same numbers.
ERRORS = {
    1: "cudaErrorInvalidValue", 2: "cudaErrorMemoryAllocation", 3: "cudaErrorInitializationError",
    35: "cudaErrorInsufficientDriver", 46: "cudaErrorDevicesUnavailable", 98: "cudaErrorInvalidDeviceFunction",
    100: "cudaErrorNoDevice", 101: "cudaErrorInvalidDevice", 200: "cudaErrorInvalidKernelImage",
    201: "cudaErrorDeviceUninitialized", 209: "cudaErrorNoKernelImageForDevice", 214: "cudaErrorECCUncorrectable",
    218: "cudaErrorInvalidPtx", 220: "cudaErrorNvlinkUncorrectable", 222: "cudaErrorUnsupportedPtxVersion",
    304: "cudaErrorOperatingSystem", 400: "cudaErrorInvalidResourceHandle", 401: "cudaErrorIllegalState",
    700: "cudaErrorIllegalAddress", 701: "cudaErrorLaunchOutOfResources", 702: "cudaErrorLaunchTimeout",
    709: "cudaErrorContextIsDestroyed", 710: "cudaErrorAssert", 711: "cudaErrorTooManyPeers",
    714: "cudaErrorHardwareStackError", 715: "cudaErrorIllegalInstruction", 716: "cudaErrorMisalignedAddress",
    717: "cudaErrorInvalidAddressSpace", 718: "cudaErrorInvalidPc", 719: "cudaErrorLaunchFailure",
    720: "cudaErrorCooperativeLaunchTooLarge", 800: "cudaErrorNotPermitted", 802: "cudaErrorSystemNotReady",
    803: "cudaErrorSystemDriverMismatch", 900: "cudaErrorStreamCaptureUnsupported",
    901: "cudaErrorStreamCaptureInvalidated", 999: "cudaErrorUnknown",
}  # fmt: skip
# Answers rather than failures: not found, not ready yet, peer access or registration as it already is, not supported.
ANSWERS = (500, 600, 704, 705, 712, 713, 801)
ASKS = re.compile(
    r"Query|Attribute|GetProcAddress|CanAccess|GetSymbol|GetLastError|PeekAtLastError|DeviceGet|PointerGet"
)
STICKY_FROM = 700
"""From here on an error ends the context: every later call returns it too."""


def failed_calls(trace: Trace) -> Int64:
    """Rows of the calls that failed, in time order; not those that merely asked and were told no."""
    if RETURNED not in trace.integers:
        return np.empty(0, np.int64)
    column = trace.integers[RETURNED]
    rows, values = column.rows.astype(np.int64), column.values.astype(np.int64)
    asks = named(trace, trace.name_code[rows], lambda name: ASKS.search(name) is not None)
    failed = ~np.isin(values, ANSWERS) & (~asks | (values >= STICKY_FROM))
    return np.asarray(rows[failed], np.int64)


def error_of(trace: Trace, row: int) -> str:
    """The error that this call returned: `700 (cudaErrorIllegalAddress)`."""
    code = trace.integers[RETURNED].get(row)
    return f"{code} ({ERRORS[code]})" if code in ERRORS else str(code)
