"""torch's profiler around the steps of a worker.

Owns: `StepProfiler`: one recording at a time, and its file. Never does: decide when. Called by: the executor, in the thread
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
from pathlib import Path

import torch
from torch.autograd.profiler import profile

from core.api.config import ProfilerConfig
from core.api.errors import UtilityError


class StepProfiler:
    """Records operations between `start` and `stop`. A thread then writes `core-PID-TIME.pt.trace.json`, or `.gz` if
    configured.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        self._config = config
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
        except Exception as error:  # reported to the caller of `written`
            self._error = f"{type(error).__name__}: {error}"


def _compress(plain: str, path: str) -> None:
    """Compress the plain file and remove it."""
    with open(plain, "rb") as source, gzip.open(path, "wb") as target:
        shutil.copyfileobj(source, target)
    os.remove(plain)
