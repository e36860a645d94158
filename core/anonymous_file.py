"""Files without a name, in memory where the system has such.

Owns: making them. Never does: read or write them. Called by: the engine's parent (files that engines hand on) and the
executor (tensors that it keeps).
"""

from __future__ import annotations

import os
import tempfile


def anonymous_file(name: str, nbytes: int) -> int:
    """The descriptor of a new file of `nbytes` zeros, which take memory when they are written; the caller closes it.

    name: what tools such as lsof show. Raises OSError.
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
