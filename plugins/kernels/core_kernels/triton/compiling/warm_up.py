"""The warm-up of an engine: what its model launches is compiled before the engine is ready, and loaded.

Owns: the process that compiles, and the loading of its results. Never does: launch, compile in this process without need.
Called by: the provider, when an engine starts.

The process runs the model's steps without a device, and compiles what they launch in processes of its own, while this one
loads weights. What it finds is remembered (see `remembered`), so that a later start only loads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from core.api.errors import UserError
from core.processes import child_environment, python_command
from core_kernels.triton.compiling import remembered
from core_kernels.triton.compiling.late import LateCompilations
from core_kernels.triton.compiling.launches import Launch, compile_launch
from core_kernels.triton.compiling.messages import Answer, Task, launches_of
from core_runtime.contracts.ahead import CompiledAhead

logger = logging.getLogger(__name__)

CHILD: Final = "core_kernels.triton.compiling.warm_up_process"
HIDDEN: Final = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
"""Environment in which no process that compiles opens the device: each would take some hundred MiB of its memory."""
EVERY_S: Final = 5.0
"""Seconds between two lines about progress."""


class Compiling:
    """The kernels of one engine on their way: the `WarmUp` contract.

    chip: name of the present device's. run, config: see `WarmsUp`. late: counts from the end of `finish` on.
    """

    def __init__(self, chip: str, run: str, config: str, late: LateCompilations) -> None:
        self._chip = chip
        self._late = late
        self._file = remembered.file_of(config, chip)
        self._known = remembered.read(self._file)
        self._process = None if self._known is not None else _start(chip, run, config)

    def finish(self) -> None:
        """Wait for the compilers, and load the kernels. Raises UserError for a kernel that cannot be compiled or loaded."""
        begin = time.perf_counter()
        launches = self._known if self._process is None else self._compiled(self._process)
        if launches is None:
            return
        for launch in launches:
            self._load(launch)
        if self._known is None:
            remembered.write(self._file, launches)
        seconds = time.perf_counter() - begin
        logger.info(
            "%d kernels are loaded for %s; the start waited %.1f s for them.", len(launches), self._chip, seconds
        )
        self._late.begin()

    def stop(self) -> None:
        """End the process, which ends its compilers."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.wait()
        self._process = None

    def _compiled(self, process: subprocess.Popen[bytes]) -> Sequence[Launch] | None:
        """Return what was compiled; None, with a line about the reason, where nothing could be."""
        failed: list[CompiledAhead] = []
        told = time.perf_counter()
        for answer in _answers(process):
            if answer.skipped:
                logger.warning("Kernels are compiled when they are first launched: %s", answer.skipped)
                break
            if answer.launches is not None:
                self.stop()
                self._refuse(failed, len(answer.launches))
                return launches_of(answer.launches)
            if answer.kernel is not None and answer.kernel.error:
                failed.append(answer.kernel)
            if answer.done == 1 or time.perf_counter() - told >= EVERY_S:
                told = time.perf_counter()
                logger.info("Compiling kernels for %s: %d of %d.", self._chip, answer.done, answer.count)
        else:
            logger.warning(
                "Kernels are compiled when they are first launched: the process that compiles them has ended."
            )
        self.stop()
        return None

    def _load(self, launch: Launch) -> None:
        """Load a compiled kernel onto the device, by the call that launches it."""
        try:
            kernel = compile_launch(launch)
            kernel._init_handles()
        except Exception as error:  # a compiler or a driver may raise anything
            self._refuse([CompiledAhead(launch.title, self._chip, 0.0, False, f"{type(error).__name__}: {error}")], 1)

    def _refuse(self, failed: Sequence[CompiledAhead], count: int) -> None:
        """Raise UserError if kernels have failed."""
        if not failed:
            return
        raise UserError(
            f"{len(failed)} of {count} kernels cannot be compiled for {self._chip}, such as {failed[0].name}: "
            f"{failed[0].error}. --plugins no:kernels.triton computes in plain torch instead, slowly; "
            "--kernels-config.triton.warm-up false starts all the same, and fails where such a kernel is launched."
        )


def _start(chip: str, run: str, config: str) -> subprocess.Popen[bytes]:
    """Start the process that compiles, with its task."""
    pipe = subprocess.PIPE
    environment = {**child_environment(), **HIDDEN}
    process = subprocess.Popen(python_command(CHILD), stdin=pipe, stdout=pipe, env=environment, start_new_session=True)
    assert process.stdin is not None
    jobs = max(1, len(os.sched_getaffinity(0)) - 1)  # one processor is for the weights
    task = Task(sys.path, run, config, chip, jobs)
    with contextlib.suppress(BrokenPipeError):  # a process that died at its start is reported by `finish`
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        process.stdin.flush()
    return process


def _answers(process: subprocess.Popen[bytes]) -> Iterator[Answer]:
    """Yield what the process says. Ends where it ends without a last word."""
    assert process.stdout is not None
    for line in process.stdout:
        yield msgspec.json.decode(line, type=Answer)
