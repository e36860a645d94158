"""How a process of our own is started.

Owns: the command line. Never does: start anything. Called by: whoever spawns an engine, a helper or a probe.
"""

from __future__ import annotations

import sys
from pathlib import Path

ENTRY = Path(__file__).resolve().parents[1] / "core_engine.py"


def python_command(module: str, *arguments: str) -> list[str]:
    """The words that run one of our modules in this environment, whatever folders named `core` there are.

    module: its full name, such as `core.engine.process`. arguments: what it finds in `sys.argv`.
    """
    return [sys.executable, "-P", str(ENTRY), module, *arguments]
