"""Standard streams that were closed before this process began.

Owns: their stand-ins. Never does: write. Called by: every command, first of all.
"""

from __future__ import annotations

import errno
import os
import sys


def open_standard_streams() -> None:
    """Have the null device stand in for standard streams that were closed, so that no other file gets their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
