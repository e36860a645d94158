"""FlashInfer's wrappers, each of which holds the plan of a step.

Owns: the wrappers, their workspace, and when one may be planned again. Never does: know a layer's cache. Called by: the
backend.

A wrapper writes its plan to one pinned host buffer and copies it to the device asynchronously. The next step may be
planned before that copy has run, so steps take wrappers in turn, and a wrapper is not planned again before its last
copy is complete. A recording reads the plan of one wrapper, which is planned again for each step that replays it: its
last copy ran before the step in flight began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from core_attention.flashinfer.step import FlashInferStep

WORKSPACE_BYTES: Final = 128 << 20
"""Size of the library's workspace."""
NUM_WRAPPERS: Final = 2
"""Wrappers of a kind of layer: one for each step in flight. More steps in flight are correct too, but wait."""

Plan = Callable[[Any, FlashInferStep], None]
"""Function (wrapper, step) that has the wrapper plan."""


class Copied(Protocol):
    """An event after the copy of a plan."""

    def synchronize(self) -> None:
        """Wait for the copy."""
        ...


@dataclass(slots=True)
class Wrapper:
    """One of the library's wrappers.

    inner: the library's object. plan: has it plan.
    copied: event after the copy of its last plan; None: it has not planned yet.
    """

    inner: Any
    plan: Plan
    copied: Copied | None = None

    def planned(self, step: FlashInferStep) -> Any:
        """Plan a step, once the host buffer may be written, and return the library's object."""
        if self.copied is not None:
            self.copied.synchronize()
        self.plan(self.inner, step)
        event = torch.get_device_module(step.pages.device).Event()
        event.record()
        self.copied = event
        return self.inner


@dataclass(slots=True)
class Recorded:
    """The plans that one recording reads.

    num_tokens, num_seqs: of the recording. max_pages: of all its sequences.
    step: the step that is planned.
    wrappers: by kind of layer, made when the recording is.
    """

    num_tokens: int
    num_seqs: int
    max_pages: int
    step: FlashInferStep
    wrappers: dict[Hashable, Wrapper] = field(default_factory=dict)

    def renew(self, step: FlashInferStep) -> None:
        """Plan another step for everything that the recording reads."""
        self.step = step
        for wrapper in self.wrappers.values():
            wrapper.planned(step)


class Plans:
    """All wrappers of a backend, by what they plan for."""

    def __init__(self) -> None:
        self._workspace: Tensor | None = None
        self._wrappers: dict[Hashable, deque[Wrapper]] = {}

    def planned(self, key: Hashable, step: FlashInferStep, make: Callable[[Tensor], Any], plan: Plan) -> Any:
        """Return the wrapper whose plan is the oldest, planned for this step.

        make: makes a wrapper in the workspace.
        """
        wrappers = self._wrappers.get(key)
        if wrappers is None:
            room = self.room(step.pages.device)
            wrappers = self._wrappers[key] = deque(Wrapper(make(room), plan) for _ in range(NUM_WRAPPERS))
        wrapper = wrappers[0]
        wrappers.rotate(-1)
        return wrapper.planned(step)

    def room(self, device: torch.device) -> Tensor:
        """Return the workspace that all wrappers share: a step's layers run one after the other."""
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspace
