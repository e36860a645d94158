"""FlashInfer's wrappers, each of which holds the plan of a step.

Owns: the wrappers, their workspace, and when one may be planned again. Never does: know a layer's cache. Called by: the
backends.

A wrapper writes its plan to one pinned host buffer and copies it to the device asynchronously. The next step may be
planned before that copy has run, so steps take wrappers in turn, and a wrapper is not planned again before its last
copy is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

WORKSPACE_BYTES: Final = 128 << 20
"""Size of the library's workspace."""
NUM_WRAPPERS: Final = 2
"""Wrappers of a kind of layer: one for each step in flight. More steps in flight are correct too, but wait."""


class Copied(Protocol):
    """An event after the copy of a plan."""

    def synchronize(self) -> None:
        """Wait for the copy."""
        ...


@dataclass(slots=True)
class Wrapper:
    """One of the library's wrappers.

    inner: the library's object.
    copied: event after the copy of its last plan; None: it has not planned yet.
    """

    inner: Any
    copied: Copied | None = None


class Plans:
    """All wrappers of a backend, by what they plan for."""

    def __init__(self) -> None:
        self._workspace: Tensor | None = None
        self._wrappers: dict[Hashable, deque[Wrapper]] = {}

    def planned(
        self, key: Hashable, device: torch.device, make: Callable[[Tensor], Any], plan: Callable[[Any], None]
    ) -> Any:
        """Return the wrapper whose plan is the oldest, planned anew once its host buffer may be written.

        make: makes a wrapper in the workspace. plan: has it plan.
        """
        wrappers = self._wrappers.get(key)
        if wrappers is None:
            room = self._room(device)
            wrappers = self._wrappers[key] = deque(Wrapper(make(room)) for _ in range(NUM_WRAPPERS))
        wrapper = wrappers[0]
        wrappers.rotate(-1)
        if wrapper.copied is not None:
            wrapper.copied.synchronize()
        plan(wrapper.inner)
        event = torch.get_device_module(device).Event()
        event.record()
        wrapper.copied = event
        return wrapper.inner

    def _room(self, device: torch.device) -> Tensor:
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspace
