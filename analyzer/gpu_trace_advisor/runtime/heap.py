"""Memory that is free within the process, given back to the system."""

import ctypes
from contextlib import suppress

LARGE_BYTES = 2 << 20
_MMAP_THRESHOLD = -3  # of glibc's mallopt
_own = False
_sparing = False


def own_process() -> None:
    """This process does nothing but run the command: how it allocates may be set."""
    global _own
    _own = True


def give_back() -> None:
    """Give back what was freed: the C library keeps it, and what one thread has freed serves no other. Where it can."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_nothing_large() -> None:
    """From now on what is large goes back to the system as soon as it is freed, at the price of new pages each time. The C
    library would raise its bound to 32 MB by itself, and keep all that is smaller. Where it is glibc, and the process ours."""
    global _sparing
    _sparing = _own
    if not _own:
        return
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def give_back_small() -> None:
    """Where large arrays go back at once: what was freed of the small ones too, after a stage that made many."""
    if _sparing:
        give_back()
