"""Memory of this process that nothing uses any more.

Owns: giving it back to the system. Never does: free anything that is in use. Called by: the worker, once it has loaded;
the reloader, when models have gone or come.
"""

from __future__ import annotations

import ctypes
import gc


def release_unused_memory() -> None:
    """Collect garbage and return the allocator's free pages; loading leaves many behind."""
    gc.collect()
    trim_memory()


def release_dropped_models() -> None:
    """The same when objects are among the garbage that were put aside as lasting; the others are put aside again."""
    num_frozen = gc.get_freeze_count()
    gc.unfreeze()
    release_unused_memory()
    if num_frozen:
        gc.freeze()


def set_aside() -> None:
    """Nothing that is there now is looked at for garbage, if a process does so at all: see `core.engine.process`."""
    if gc.get_freeze_count():
        gc.freeze()


def trim_memory() -> None:
    """Return the allocator's free pages. Only glibc has the call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
