"""The progress of weight loading.

Owns: its texts and units. Never does: decide whether it is shown. Called by: the loading of weights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from tqdm import tqdm

from core_runtime.specs.checkpoint import CheckpointManifest

logger = logging.getLogger(__name__)

LINE_SECONDS: Final = 5.0
"""Seconds between lines of a log. A shorter loading has none."""


class LoadingBar:
    """The progress of one loading: a bar in a terminal; elsewhere a line now and then, as a log keeps every update.

    total: bytes to load. n: bytes that are loaded.
    """

    def __init__(self, total: int, *, shown: bool) -> None:
        self.total = total
        self.n = 0
        self._shown = shown
        disabled = None if shown else True  # None: unless it is a terminal
        self._bar = tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, disable=disabled, leave=False)
        self._begin = self._last_line = time.monotonic()

    def update(self, nbytes: int) -> None:
        """Count bytes that have been loaded."""
        self.n += nbytes
        self._bar.update(nbytes)
        now = time.monotonic()
        if self._shown and self._bar.disable and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            logger.info("Loading weights: %.1f of %.1f GB in %.0f s", self.n / 1e9, self.total / 1e9, now - self._begin)

    def refresh(self) -> None:
        """Draw the bar now."""
        self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        seconds = time.monotonic() - self._begin
        if self._shown and error is None and seconds >= LINE_SECONDS:
            rate = self.n / seconds / 1e9
            logger.info("Loaded %.1f GB of weights in %.1f s, %.2f GB/s", self.n / 1e9, seconds, rate)


def loading_bar(manifest: CheckpointManifest, reads: Iterable[str], *, shown: bool, more: int = 0) -> LoadingBar:
    """Return the progress for the bytes of `reads` and `more` bytes. Update it by each tensor's `nbytes`."""
    total = sum(manifest.tensors[name].nbytes for name in reads if name in manifest.tensors)
    return LoadingBar(total + more, shown=shown)
