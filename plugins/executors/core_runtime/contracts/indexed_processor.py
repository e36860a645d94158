"""The interface of logits processors that were written for vLLM: a class that follows a batch by index.

Owns: vLLM's names, so that such classes run with their import changed. Never does: import torch at run time, or call a
processor (`core_runtime.executor.indexed_processor` does).
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
"""Index, parameters, tokens of the prompt, and the list to which the engine appends each token of the output."""

RequestLogitsProcessor = Callable[..., "torch.Tensor"]
"""Takes (output tokens, logits [V]) or (prompt tokens, output tokens, logits [V]); answers the changed logits [V]."""


class MoveDirectionality(Enum):
    """What happens to two rows of a batch."""

    UNIDIRECTIONAL = auto()
    """The first one takes the place of the second."""
    SWAP = auto()
    """Each takes the other's place."""


MovedRequest = tuple[int, int, MoveDirectionality]
RemovedRequest = int


@dataclass(frozen=True)
class BatchUpdate:
    """How a batch has changed; a processor takes in what was removed, then what was added, then what was moved.

    batch_size: requests in it now.
    removed: indices of those that are gone.
    added: those that are new, or take an index over.
    moved: pairs of indices.
    """

    batch_size: int
    removed: Sequence[RemovedRequest] = field(default=())
    added: Sequence[AddedRequest] = field(default=())
    moved: Sequence[MovedRequest] = field(default=())


class LogitsProcessor(ABC):
    """Changes the logits of a batch.

    vllm_config: the configuration, with vLLM's names (`core_runtime.specs.vllm_config`).
    device: where logits are.
    is_pin_memory: whether memory of the host should be pinned; never here.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for parameters that the processor cannot work with."""
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The changed logits, float32 [B, V], in place or new."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the largest logit stays the largest, so that greedy requests can be left out."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called ahead of each `apply`. None: the batch is the same."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Changes logits request by request: a subclass says what to do for one, and whether the largest logit may change."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._calls: dict[int, RequestLogitsProcessor] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """What changes the logits of such a request; None: nothing does."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch."""
        process_dict_updates(self._calls, batch_update, self._call_of)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change the rows that want it, one after the other."""
        for index, call in self._calls.items():
            logits[index] = call(logits[index])
        return logits

    def _call_of(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> RequestLogitsProcessor | None:
        """The function of one request, which is left to be given its logits."""
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
    """Keep a table by index up to date with a batch. Returns whether it has changed.

    new_state: what the table has of a new request; None: nothing.
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
