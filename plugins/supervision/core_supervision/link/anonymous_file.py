"""Files without a name, in memory where the system supports it.

Owns: their creation. Never does: read or write them. Called by: the engine's parent (files passed from one engine to the next)
and the executor (tensors that it keeps).
"""

from __future__ import annotations

import os
import tempfile


def anonymous_file(name: str, nbytes: int) -> int:
    """Create a file of `nbytes` zeros and return its descriptor, which the caller closes.

    The zeros take no memory until they are overwritten. name: name that tools such as lsof show. Raises OSError.
    """
    descriptor = _create(name)
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _create(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
