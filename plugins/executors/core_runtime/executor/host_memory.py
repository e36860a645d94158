"""Release of host memory that this process no longer uses.

Owns: returning it to the system. Never does: free anything that is in use. Called by: the worker, once it has loaded;
the reloader, when models were released or loaded; the reader of adapters.
"""

from __future__ import annotations

import ctypes
import gc


def release_unused_memory() -> None:
    """Collect garbage and return the allocator's free pages; loading leaves many behind."""
    # Garbage first: pages can be returned only once the objects in them are freed.
    gc.collect()
    trim_memory()


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
