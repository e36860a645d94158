"""The contract of logits processors: what changes the logits of the requests that ask for it.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), `core_runtime.executor.logits_processors` (calls them).
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

    key: of its sequence.
    params: of the request; its own arguments are in `params.extra_args`.
    prompt: int32 [P], the prompt's tokens.
    output: int32 [n], the tokens behind it, before this position; the last `num_drafted` are drafts.
    num_drafted: tokens that may turn out not to be there.

    Both arrays are read-only memory of the engine, valid during the call.
    """

    key: SequenceKey
    params: SamplingParams
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    num_drafted: int


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """Sequences that came and went.

    started: key and parameters of those whose rows follow; again after a preemption.
    finished: keys of those of which no row comes any more.
    """

    started: Sequence[tuple[SequenceKey, SamplingParams]] = field(default=())
    finished: Sequence[SequenceKey] = field(default=())


@runtime_checkable
class LogitsProcessor(Protocol):
    """Kind `logits_processor`. Runs in the worker, on the host, behind the allowed ids, bad words, minimum and biases of a
    request and before its penalties; token masks of grammars come last in any case.

    Calls are made by a thread beside the steps and waited for 5 seconds. One that raises, takes longer, or answers something
    else than finite numbers and -inf ends the request whose row it was; others go on. Optional parts: `NeedsOrder`,
    `HasExampleParams`.

    is_argmax_invariant: whether the largest logit of a row stays the largest. Then requests of temperature 0 are left out, and
        others come behind the temperature, as z = (logit - largest) / T.
    """

    is_argmax_invariant: bool

    def validate_params(self, params: SamplingParams) -> None:
        """Raise ValueError, with a sentence for the user, when `params.extra_args` are wrong. Asked before a request runs."""
        ...

    def wants(self, params: SamplingParams) -> bool:
        """Whether it changes anything for such a request. Rows of other requests never come to `apply`."""
        ...

    def update(self, changes: BatchChanges) -> None:
        """Sequences that are wanted came, or are gone."""
        ...

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        """The changed logits, float32 [R, V] on the host, in place or new. rows: R of them, in any number and order.

        What a row becomes depends on its own logits, parameters and tokens alone: it may come with others or by itself, once
        or again, behind drafts that are then gone.
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
    """A processor that can be checked although it changes nothing for most requests."""

    def example_params(self) -> SamplingParams:
        """Parameters of a request that it changes, for `core plugins check`."""
        ...
