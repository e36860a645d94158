"""Memory of this process that nothing uses any more.

Owns: giving it back to the system. Never does: free anything that is in use. Called by: the worker, once it has loaded.
"""

from __future__ import annotations

import ctypes
import gc


def release_unused_memory() -> None:
    """Collect garbage and return the allocator's free pages; loading leaves many behind. Only glibc has the call."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
