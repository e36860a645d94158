"""A tape: the native calls of a forward pass, recorded once and replayed by one call.

Owns: the recording of one run. Never does: keep what the calls point to alive (the model and its buffers outlive a tape).
Called by: the runtime's `capture`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from core.api.reason import Reason
from core_platforms.cpu.extension import kernels_or_reason


class Tape:
    """The recorded native calls of one pass. Replaying costs one Python call and runs with the GIL released."""

    __slots__ = ("_calls", "_run", "length")

    def __init__(self, native: ModuleType, calls: Any) -> None:
        self._calls = calls
        self._run = native.tape_run
        self.length: int = native.tape_length(calls)

    def __call__(self, num_rows: int, num_seqs: int) -> None:
        """Run all calls on the first `num_rows` rows of their buffers. Raises IndexError for a token id outside the
        embedding.
        """
        self._run(self._calls, num_rows, num_seqs)


def record(run: Callable[[], None], num_rows: int, num_seqs: int) -> Tape | None:
    """Call `run` and record its native calls; None without the extension or when a call had another number of rows."""
    native = kernels_or_reason()
    if isinstance(native, Reason):
        run()
        return None
    native.tape_begin(num_rows, num_seqs)
    try:
        run()
    finally:
        calls = native.tape_end()
    return None if calls is None else Tape(native, calls)
