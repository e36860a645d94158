"""Files without a name, in memory, that an engine process inherits.

Owns: making them. Never does: read or write them. Called by: `EngineProcess`, which passes their descriptors on.

Nothing of them is left once nobody has them open, however the processes end.
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
