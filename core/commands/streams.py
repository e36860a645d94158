"""Replacement of standard streams that were closed before this process started.

Owns: the replacements. Never does: write. Called by: every command, before anything else.
"""

from __future__ import annotations

import errno
import os
import sys


def open_standard_streams() -> None:
    """Open the null device for closed standard streams, so that no file opened later gets their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # The lowest free descriptor: this one.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
