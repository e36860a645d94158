"""torch's profiler around the steps of a worker.

Owns: `StepProfiler`: one recording at a time, and its files; `ProgramProfiler`, for programs that profile this process.
Never does: decide when. Called by: the executor, in the thread
that computes steps, which is the one that torch records.

It is torch.autograd's profiler, which torch.profiler is made of: that one imports torch's compiler and with it Triton, which
takes many seconds and writes pages about leaks when the process ends.
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd.profiler import profile

from core.api.config import EngineConfig, ProfilerConfig
from core.api.errors import UserError, UtilityError
from core.engine.executor import Profiler
from core_runtime.models.layer_ranges import BLOCK
from core_runtime.specs.profile_settings import ProfileSettings, profile_settings_of

BY_PROGRAM: Final = "where the program that profiles this process writes"


def profiler_of(config: EngineConfig) -> Profiler | None:
    """Return the profiler of a configuration, None where there is none. Raises UserError for a device without it."""
    settings = profile_settings_of(config)
    if settings.program:
        if not torch.cuda.is_available():
            raise UserError("--profiler-config.profiler cuda: no CUDA device is here; choose torch.")
        return ProgramProfiler(torch.cuda.cudart())
    return None if config.profiler is None else StepProfiler(config.profiler, settings)


class ProgramProfiler:
    """Tells the program that profiles this process when to begin and end, as `nsys profile -c cudaProfilerApi` waits for it.

    runtime: CUDA's runtime library.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._records = False

    def start(self) -> str:
        """Let the program begin to record. Raises UtilityError while it records."""
        if self._records:
            raise UtilityError("A profile is being recorded already; stop it first.")
        self._runtime.cudaProfilerStart()
        self._records = True
        return BY_PROGRAM

    def stop(self) -> None:
        """Let the program end. Raises UtilityError when nothing is recorded."""
        if not self._records:
            raise UtilityError("No profile is being recorded; start one first.")
        self._runtime.cudaProfilerStop()
        self._records = False

    def written(self) -> str:
        """Return the place of the trace, which the program knows."""
        return BY_PROGRAM


class StepProfiler:
    """Records operations between `start` and `stop`. A thread then writes `core-PID-TIME.pt.trace.json`, or `.gz` if
    configured, and tables beside it.
    """

    def __init__(self, config: ProfilerConfig, settings: ProfileSettings | None = None) -> None:
        self._config = config
        self._settings = settings or ProfileSettings()
        self._directory = Path(config.directory).expanduser()
        self._profile: profile | None = None
        self._writing: threading.Thread | None = None
        self._path = ""
        self._error = ""
        with profile(use_kineto=True):  # the first profile takes longest: better now than in a running engine
            pass

    def start(self) -> str:
        """Start recording and return the directory of traces. Raises UtilityError if that is not possible."""
        if self._profile is not None:
            raise UtilityError("A profile is being recorded already; stop it first.")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UtilityError(f"Traces cannot be written to {self._directory}: {error.strerror}.") from None
        config = self._config
        recording = profile(
            use_kineto=True,
            use_device="cuda" if torch.cuda.is_available() else None,
            record_shapes=config.record_shapes,
            profile_memory=config.with_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
        )
        recording.__enter__()
        self._profile = recording
        return str(self._directory)

    def stop(self) -> None:
        """Stop recording and start writing the trace. Raises UtilityError when nothing is recorded."""
        recording = self._profile
        if recording is None:
            raise UtilityError("No profile is being recorded; start one first.")
        self._profile = None
        recording.__exit__(None, None, None)
        suffix = ".pt.trace.json.gz" if self._config.use_gzip else ".pt.trace.json"
        name = f"core-{os.getpid()}-{time.time_ns() // 1_000_000}{suffix}"
        self._path = str(self._directory / name)
        self._error = ""
        self._writing = threading.Thread(target=self._write, args=(recording, self._path), name="core-profile")
        self._writing.start()

    def written(self) -> str | None:
        """Return the path of the newest trace; None while it is being written. Raises UtilityError when writing failed."""
        if self._writing is not None and self._writing.is_alive():
            return None
        if self._error:
            raise UtilityError(f"The trace {self._path} was not written: {self._error}.")
        return self._path

    def _write(self, recording: profile, path: str) -> None:
        try:
            plain = path.removesuffix(".gz")
            recording.export_chrome_trace(plain)
            if plain != path:
                _compress(plain, path)
            if self._settings.tables:
                _write_tables(recording, plain.removesuffix(".pt.trace.json"), layers=self._settings.layers)
        except Exception as error:  # reported to the caller of `written`
            self._error = f"{type(error).__name__}: {error}"


def _write_tables(recording: profile, beginning: str, *, layers: bool) -> None:
    """Write sums by operation to BEGINNING.operations.txt and, where blocks are ranges, by block to BEGINNING.layers.txt."""
    found = recording.key_averages()
    on_device = any(event.self_device_time_total for event in found)
    order = "self_device_time_total" if on_device else "self_cpu_time_total"
    Path(f"{beginning}.operations.txt").write_text(found.table(sort_by=order, row_limit=-1), encoding="utf-8")
    if layers:
        Path(f"{beginning}.layers.txt").write_text(layer_table(found), encoding="utf-8")


def layer_table(events: Iterable[Any]) -> str:
    """Return a line for each block: how often it ran, and its milliseconds on the processor and on the device."""
    named = {int(event.key.removeprefix(BLOCK)): event for event in events if event.key.startswith(BLOCK)}
    lines = [f"{'block':>6} {'calls':>8} {'cpu ms':>12} {'device ms':>12}"]
    for block, event in sorted(named.items()):
        times = event.cpu_time_total / 1000.0, event.device_time_total / 1000.0
        lines.append(f"{block:>6} {event.count:>8} {times[0]:>12.3f} {times[1]:>12.3f}")
    return "\n".join(lines) + "\n"


def _compress(plain: str, path: str) -> None:
    """Compress the plain file and remove it."""
    with open(plain, "rb") as source, gzip.open(path, "wb") as target:
        shutil.copyfileobj(source, target)
    os.remove(plain)
