"""How a process of our own is started.

Owns: the command line and the environment. Never does: start anything. Called by: whoever spawns an engine, a helper or a
probe.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

ENTRY = Path(__file__).resolve().parents[1] / "core_engine.py"


def python_command(module: str, *arguments: str) -> list[str]:
    """The words that run one of our modules in this environment, whatever folders named `core` there are.

    module: its full name, such as `core.engine.process`. arguments: what it finds in `sys.argv`.
    """
    return [sys.executable, "-P", str(ENTRY), module, *arguments]


def child_environment() -> dict[str, str]:
    """Our environment, with this very `core` importable first: the child neither sees the working directory nor
    another package of the same name. numpy makes no threads of its own there: they would wait where ours compute."""
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment
