"""Contracts of kernels and backends whose calls can be recorded by a runtime and replayed.

Owns: these optional parts, and the two queries about them. Never does: record (`Captures.capture` does).
Called by: plugins (they implement these), layers and models (they query while a model is built, never in a step).

The forward pass is recorded once and replayed, so a recorded call may depend only on the addresses of its
arguments and their number of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from core_runtime.contracts.attention import BatchView


@runtime_checkable
class Recordable(Protocol):
    """A provider of kernels, or a linear, heads or experts kernel, that says whether its calls can be recorded."""

    @property
    def capturable(self) -> bool:
        """Whether the calls can be recorded. Without this member: no."""
        ...


@runtime_checkable
class RecordableBackend(Protocol):
    """An attention backend that says when its calls can be recorded."""

    @property
    def capture(self) -> Literal["any", "uniform", "never"]:
        """Steps whose calls can be recorded; the metadata is then valid for every later step of that kind in the same
        buffers.

        `uniform`: steps in which all sequences have the same number of rows. Without this member: `never`.
        """
        ...


@runtime_checkable
class PlansRecorded(Protocol):
    """An attention backend whose recorded calls read a plan that the host makes for each step."""

    def plan_recorded(self, view: BatchView, fixed: BatchView) -> None:
        """Plan a step in the memory that its recording reads. Called before the recording is made or replayed, once the
        step's tensors have been sent.

        view: the step. fixed: the view that the recording is made of.
        """
        ...


def is_recordable(part: object) -> bool:
    """Whether a provider's or a kernel's calls can be recorded."""
    return isinstance(part, Recordable) and part.capturable


def recordable_steps(backend: object) -> str:
    """Return the steps in which an attention backend's calls can be recorded: `any`, `uniform` or `never`."""
    return backend.capture if isinstance(backend, RecordableBackend) else "never"
