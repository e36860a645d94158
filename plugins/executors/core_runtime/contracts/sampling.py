"""The contracts of sampling kernels.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

    Filters = tuple[Tensor, Tensor, Tensor]
    Masks = tuple[Tensor, Tensor]
    UnmaskedCall = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Filters | None]
    MaskedCall = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Filters | None, Masks | None]


class RaceCall(msgspec.Struct, frozen=True, gc=False):
    """The arguments of one call of a sampling kernel, in order: R rows of logits over V tokens, of which S are sampled.

    logits:       float32 [R, V]; rows may be strided, and -inf excludes a token.
    which:        int64 [S], row of logits for each sampled row.
    keys:         int64 [S, 5], 32-bit words: seed (low, high), output index, choice, purpose.
    temperatures: float32 [S]; 0: the largest logit wins.
    out:          int64 [S], output tokens; −1 if a logit is NaN or infinite, or every one is −inf.
    filters:      top-k int64 [S] (0: off), top-p float64 [S] (1: off), smallest z that passes min-p float32 [S].
    masks:        words int32 [M, W], W ≥ (V + 31) // 32, where bit b of word w stands for the token 32·w + b; index int64 [S],
                                the bitmask of each row, −1: no token is excluded.
    """

    logits: Tensor
    which: Tensor
    keys: Tensor
    temperatures: Tensor
    out: Tensor
    filters: Filters | None = None
    masks: Masks | None = None


class RaceKernel(Protocol):
    """Kernel that samples rows of logits with the keyed noise and the filters of `core_runtime.sampling`, to the bit."""

    def __call__(self, *call: *UnmaskedCall) -> None:
        """Set out[i] = argmax of z − ln E, z = (logit − largest) / T, over the row which[i]; the lowest id on ties.

        call: fields of a `RaceCall` in order, except the last; filters may be left out.
        """
        ...


class MaskedRaceKernel(Protocol):
    """A `RaceKernel` that also accepts token masks."""

    def __call__(self, *call: *MaskedCall) -> None:
        """Sample the i-th row as if its logits were −inf wherever its bitmask has no bit.

        call: fields of a `RaceCall`, in order; masks, and filters with them, may be left out.
        out is −1 even if a logit that is NaN or infinite is excluded by the mask.
        """
        ...


class LogprobsKernel(Protocol):
    """Kernel for logprobs of raw logits: `core_runtime.sampling.logprobs` for many rows at once."""

    def __call__(
        self, logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
    ) -> None:
        """Compute logprobs of row which[i] (int64 [S]) of float32 [R, V]: the token chosen[i] and the counts[i] most
        likely ones.

        ids int64 and values float64 [S, W], W > every count: the chosen token first, the others descending; ranks int64 [S]
        of the chosen tokens: 1 + number of larger logits.
        """
        ...
