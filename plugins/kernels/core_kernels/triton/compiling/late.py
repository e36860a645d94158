"""A count of kernels that are compiled in front of a launch, which waits for it.

Owns: the count, in Triton's hook after a compilation. Never does: compile. Called by: the provider.
"""

from __future__ import annotations

import logging
from typing import Any

import triton

logger = logging.getLogger(__name__)


class Counter:
    """Triton's hook: counts the kernels that a launch had to compile, or to read from a disk; one for the process."""

    def __init__(self, before: Any) -> None:
        self.count = 0
        self._before = before

    def __call__(self, **facts: Any) -> Any:
        """Count one, unless it was compiled ahead."""
        if not facts["is_manual_warmup"]:
            self.count += 1
            logger.warning("A step waited for the kernel '%s', which the warm-up did not know.", facts["fn"].name)
        return None if self._before is None else self._before(**facts)


class LateCompilations:
    """Kernels compiled in front of a launch since `begin`."""

    def __init__(self) -> None:
        self._counter: Counter | None = None
        self._at_begin = 0

    def begin(self) -> None:
        """Count from now on."""
        runtime = triton.knobs.runtime
        if not isinstance(runtime.jit_post_compile_hook, Counter):
            runtime.jit_post_compile_hook = Counter(runtime.jit_post_compile_hook)
        self._counter = runtime.jit_post_compile_hook
        self._at_begin = self._counter.count

    @property
    def count(self) -> int:
        """Their number; 0 before `begin`."""
        return 0 if self._counter is None else self._counter.count - self._at_begin
