"""What a process that runs the command does without. Imported before numpy, which starts its threads as it loads."""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # nothing here multiplies matrices; idle threads spin before they sleep

atexit.register(gc.freeze)  # else all objects are looked at once more before the process ends

OBJECTS = 200_000
"""New objects before the collector looks at them. There is little garbage in cycles, and many objects to look at again
and again while modules load."""


def rarely_collect() -> None:
    """Let the garbage collector of this process run seldom."""
    gc.set_threshold(OBJECTS, 20, 100)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector run seldom for as long as this lasts."""
    before = gc.get_threshold()
    rarely_collect()
    try:
        yield
    finally:
        gc.freeze()  # what is young is old from now on; else all of it would be looked at at once
        gc.unfreeze()
        gc.set_threshold(*before)
