"""The way into `core` that nothing shadows: nobody else has a module of this name, and `core` lies beside it.

Owns: the command `core`, and the start of the processes that it needs. Never does: anything but import and run.
Called by: the installed command; `core.processes`, which runs this file with the name of a module.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)


def claim() -> None:
    """Import `core` from beside this file, although PYTHONPATH may name a folder with another package `core`.

    Its modules are found through the package from then on, so the path stays as the user has set it.
    """
    sys.path.insert(0, HERE)
    try:
        import core  # noqa: F401
    finally:
        sys.path.remove(HERE)


def main() -> int:
    """The command `core`. Returns its exit code."""
    claim()
    from core.commands.main import main as command

    return command()


if __name__ == "__main__":
    claim()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
