"""A process that has imported everything but plugins, and forks a trial for each task.

Owns: the imports that trials share, and the forks. Never does: import a third-party plugin, or start an engine itself.
Called by: `starts`, as `python -m core_commands.doctor.nursery`.

Importing torch and the engine takes most of a start: 4.1 of 5.0 processor seconds with a tiny model. A fork inherits it.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from core.processes import leave_signals_to_parent
from core_commands.doctor.trial import Task, run_trial

SHARED: Final = ("core_config.resolve", "core_supervision.link.inproc", "core_observers.engine.canary")
MAX_MESSAGE: Final = 1 << 16
NUM_FILES: Final = 3
"""Descriptors that come with a task: the trial's input, output and log."""


class Order(msgspec.Struct, frozen=True):
    """A trial to fork. task: file with it. paths: folders that stand first on its search path."""

    task: str
    paths: tuple[str, ...] = ()


def main(argv: Sequence[str]) -> int:
    """Run the process until the other end of the socket is closed. argv: the socket's descriptor."""
    leave_signals_to_parent()
    # Trials are not waited for: their pipes say when one has ended, and until this process ends no other gets its id.
    with socket.socket(fileno=int(argv[0])) as orders:
        for name in SHARED:
            importlib.import_module(name)
        from core.engine.executors import import_executor

        import_executor(None)
        while True:
            data, files, _, _ = socket.recv_fds(orders, MAX_MESSAGE, NUM_FILES)
            if not data:
                return 0
            order = msgspec.json.decode(data, type=Order)
            pid = os.fork()
            if pid == 0:
                orders.close()
                _run(order, files)
            orders.sendall(pid.to_bytes(8, "little"))
            for file in files:
                os.close(file)


def _run(order: Order, files: Sequence[int]) -> None:
    """Become a trial. Does not return."""
    try:
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        sys.path[:0] = order.paths
        # Helper processes of the trial look there too.
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*order.paths, *([inherited] if inherited else [])])
        importlib.invalidate_caches()
        run_trial(msgspec.json.decode(Path(order.task).read_bytes(), type=Task))
    finally:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
