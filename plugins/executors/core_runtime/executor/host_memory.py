"""Release of host memory that this process no longer uses.

Owns: returning it to the system. Never does: free anything that is in use. Called by: the worker, around loading;
the reloader, when models were released or loaded; the reader of adapters.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator


def release_unused_memory() -> None:
    """Collect garbage and return the allocator's free pages; loading leaves many behind."""
    # Garbage first: pages can be returned only once the objects in them are freed.
    gc.collect()
    trim_memory()


@contextlib.contextmanager
def older_objects_aside() -> Iterator[None]:
    """Let collections within the context skip the objects that exist now; all are visited again afterwards.

    Those of imported modules are hundreds of thousands and none of them is garbage: visiting them after loading took 8% of the
    processor time of a start.
    """
    if gc.get_freeze_count():  # the process has set objects aside itself; unfreezing would bring them back
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def release_dropped_models() -> None:
    """Release memory when frozen objects may be garbage too; the surviving ones are frozen again."""
    if not gc.get_freeze_count():
        release_unused_memory()
        return
    # The models were frozen after start-up, and the collector skips frozen objects.
    gc.unfreeze()
    release_unused_memory()
    gc.freeze()


def set_aside() -> None:
    """Freeze all present objects so that the collector skips them, if this process does so; see `core.engine.process`."""
    if gc.get_freeze_count():
        gc.freeze()


def trim_memory() -> None:
    """Return the allocator's free pages to the system; does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
