"""Compiles the native kernels in place, for source checkouts and for installations whose compiler came later.

Owns: the one call of `setup.py`. Never does: load the result (a running process keeps the extension it has loaded).
Called by: `core build-kernels`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from core.api.errors import UserError

ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]  # the folder of the distribution
TIME_LIMIT_SECONDS = 600


def rebuild() -> str:
    """Compile the extension next to its sources and return the compiler's log.

    The environment variable CORE_NATIVE selects the instruction sets to build: `host` (the default), `few`, `here`, `all`, or
    a list of names.

    Raises UserError when the sources are not there, the installation is read-only, the compiler fails or takes more
    than ten minutes.
    """
    if not (ROOT / "setup.py").exists():
        raise UserError(
            f"{ROOT} has no setup.py: reinstall core-engine-platforms from its source to compile the kernels"
        )
    package = Path(__file__).parent
    if not os.access(package, os.W_OK):
        raise UserError(
            f"{package} is read-only: compile the kernels as a user who may write there, or install elsewhere"
        )
    command = [sys.executable, "setup.py", "build_ext", "--inplace", "--force"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"compiling the kernels took more than {TIME_LIMIT_SECONDS} seconds") from error
    error_file = package / "native_build_error.txt"
    if done.returncode != 0 or error_file.exists():
        log = error_file.read_text(encoding="utf-8") if error_file.exists() else done.stderr
        raise UserError(f"the kernels were not compiled:\n{log}")
    return done.stdout + done.stderr
