"""The interface of logits processors that were written for vLLM: a class that follows a batch by index.

Owns: vLLM's names, so that such classes run with their import changed. Never does: import torch at run time, or call a
processor (`core_runtime.executor.processors.indexed` does).
Called by: users' classes, through the module `core.v1.sample.logits_processor`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from core.api.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

AddedRequest = tuple[int, SamplingParams, "list[int] | None", "list[int]"]
"""Index, parameters, prompt tokens, and the list to which the engine appends each output token."""

RequestLogitsProcessor = Callable[..., "torch.Tensor"]
"""Function of (output tokens, logits [V]) or (prompt tokens, output tokens, logits [V]) that returns the changed logits
[V].
"""


class MoveDirectionality(Enum):
    """Kinds of moves between two rows of a batch."""

    UNIDIRECTIONAL = auto()
    """The first row replaces the second."""
    SWAP = auto()
    """The two rows are exchanged."""


MovedRequest = tuple[int, int, MoveDirectionality]
RemovedRequest = int


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of a batch; a processor applies removals first, then additions, then moves.

    batch_size: current number of requests.
    removed: indices of requests that left.
    added: new requests, some of which may replace the one at their index.
    moved: pairs of indices.
    """

    batch_size: int
    removed: Sequence[RemovedRequest] = field(default=())
    added: Sequence[AddedRequest] = field(default=())
    moved: Sequence[MovedRequest] = field(default=())


class LogitsProcessor(ABC):
    """Changes the logits of a batch.

    vllm_config: the configuration, with vLLM's names (`core_runtime.specs.vllm_config`).
    device: device of the logits.
    is_pin_memory: whether host memory should be pinned; never true here.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for parameters that the processor cannot work with."""
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the changed logits, float32 [B, V], in place or new."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the largest logit stays the largest, so that greedy requests can be left out."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Update the state before each `apply`. None: the batch has not changed."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Changes logits request by request: a subclass gives the function for one request, and whether the argmax can change."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._calls: dict[int, RequestLogitsProcessor] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the function that changes the logits of such a request; None: nothing changes."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply the batch's changes to the table of functions."""
        process_dict_updates(self._calls, batch_update, self._call_of)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change the rows that have a function, one after the other."""
        for index, call in self._calls.items():
            logits[index] = call(logits[index])
        return logits

    def _call_of(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> RequestLogitsProcessor | None:
        """Return the function of one request, with all arguments bound except its logits."""
        call = self.new_req_logits_processor(params)
        if call is None:
            return None
        takes_prompt = len(inspect.signature(call).parameters) == 3
        known = (prompt_ids, output_ids) if takes_prompt else (output_ids,)
        return partial(call, *known)


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Apply a batch's changes to a table by index. Returns whether the table has changed.

    new_state: returns the table's entry for a new request; None: no entry.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    for index in batch_update.removed:
        req_entries.pop(index, None)
    for index, params, prompt_ids, output_ids in batch_update.added:
        state = new_state(params, prompt_ids, output_ids)
        req_entries.pop(index, None)
        if state is not None:
            req_entries[index] = state
    for first, second, direction in batch_update.moved:
        moving = req_entries.pop(first, None)
        staying = req_entries.pop(second, None)
        if moving is not None:
            req_entries[second] = moving
        if staying is not None and direction is MoveDirectionality.SWAP:
            req_entries[first] = staying
    return before != req_entries
