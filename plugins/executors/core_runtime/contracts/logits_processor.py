"""The contract of logits processors, which change the logits of requests that use them.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), `core_runtime.executor.processors.logits_processors` (calls them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.api.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

SequenceKey = tuple[str, int]
"""Request id and choice."""


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """One position whose logits are changed.

    key: key of its sequence.
    params: parameters of the request; its own arguments are in `params.extra_args`.
    prompt: int32 [P], the prompt's tokens.
    output: int32 [n], output tokens before this position; the last `num_drafted` are drafts.
    num_drafted: number of tokens that may be rejected later.

    Both arrays are read-only views of the engine's memory, valid during the call.
    """

    key: SequenceKey
    params: SamplingParams
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    num_drafted: int


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """Sequences that started or finished.

    started: keys and parameters of sequences whose rows follow; again after a preemption.
    finished: keys of sequences without further rows.
    """

    started: Sequence[tuple[SequenceKey, SamplingParams]] = field(default=())
    finished: Sequence[SequenceKey] = field(default=())


@runtime_checkable
class LogitsProcessor(Protocol):
    """Kind `logits_processor`. Runs in the worker, on the host: after a request's allowed ids, bad words, minimum and
    biases, and before its penalties. Token masks of grammars come last in any case.

    Calls are made in a thread next to that of the steps, with a time limit of 5 seconds. A call that raises, takes
    longer, or returns anything but finite numbers and -inf ends the request whose row it was; others continue. Optional
    parts: `NeedsOrder`, `HasExampleParams`.

    is_argmax_invariant: whether the largest logit of a row stays the largest. If so, requests of temperature 0 are left out,
        and others come after the temperature, as z = (logit - largest) / T.
    """

    is_argmax_invariant: bool

    def validate_params(self, params: SamplingParams) -> None:
        """Raise ValueError, with a message for the user, when `params.extra_args` are wrong. Called before a request runs."""
        ...

    def wants(self, params: SamplingParams) -> bool:
        """Whether it changes logits of such a request. Rows of other requests are never passed to `apply`."""
        ...

    def update(self, changes: BatchChanges) -> None:
        """Follow the sequences that it wants: some started, some finished."""
        ...

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        """Return the changed logits, float32 [R, V] on the host, in place or new. rows: R of them, in any number and order.

        A row's result may depend on its own logits, parameters and tokens only: it may come with others or alone, once or
        repeatedly, after drafts that are then rejected.
        """
        ...


@runtime_checkable
class NeedsOrder(Protocol):
    """A processor that follows each sequence from one position to the next."""

    @property
    def needs_order(self) -> bool:
        """True: rows come one at a time, each position of a sequence once and in order, and its sequences have no drafts."""
        ...


@runtime_checkable
class HasExampleParams(Protocol):
    """A processor that changes nothing for most requests, but gives parameters with which it can be checked."""

    def example_params(self) -> SamplingParams:
        """Return parameters of a request that it changes, for `core plugins check`."""
        ...
