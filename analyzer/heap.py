"""Memory that is free within the process, given back to the system."""

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Give back what was freed: the C library keeps it, and what one thread has freed serves no other. Where it can."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
