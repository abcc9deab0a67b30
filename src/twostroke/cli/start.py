"""What makes a command answer sooner; nothing here changes an answer."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Leave the cyclic collector off while modules and a model are loaded: all of it stays.

    Collecting again and again what cannot be garbage takes 13 ms of a start of 300.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_blas_alone() -> None:
    """Tell NumPy's BLAS, before it is loaded, to start no threads: 10 ms for what nobody calls.

    The native backend multiplies with kernels of its own.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
