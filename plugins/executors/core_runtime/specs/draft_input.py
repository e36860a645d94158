"""The input of a draft: the target's hidden states in addition to tokens. Torch-free.

Owns: `DraftInput`, and the names and shapes of its tensors. Never does: hold weights or compute
(`core_runtime.models.draft_input` does). Called by: `DecoderSpec`, proposers (they describe their drafts).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from core.api.specs import LayerSpec
from core_runtime.specs.block_spec import NormSpec
from core_runtime.specs.mixer_parts import NormTensor

JOINED: Final = "input.joined"
TAPS: Final = "taps"
MASK_HIDDEN: Final = "mask_hidden"
DRAFT_TOKENS: Final = "draft_tokens"


class DraftInput(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which embedding and hidden state enter the draft's first block.

    kind: `tokens`: the embedding alone. `joined`: a matrix [H, 2H] of both, concatenated. `paired`: the hidden state is the
        residual stream, and the attention of the first block reads both concatenated.
    hidden_first: whether the hidden state is the left half.
    bias: whether the matrix of `joined` has a bias.
    embed_norm: norm of the embedding before that, or None.
    hidden_norm: norm of the hidden state before that, or None.
    norms_stream: with `paired`, whether the residual stream begins with the normed hidden state.
    tap_size: width of the concatenated target taps, which a matrix [H, tap_size] projects; 0: they are the hidden state.
    tap_norms: number of norms before that matrix, each for an equal part of the taps; 0: none.
    tap_norm: kind of these norms.
    masked: whether there is a learned hidden state (or taps, if they are projected) for tokens that are not known yet.
    """

    kind: Literal["tokens", "joined", "paired"] = "tokens"
    hidden_first: bool = False
    bias: bool = False
    embed_norm: NormSpec | None = None
    hidden_norm: NormSpec | None = None
    norms_stream: bool = False
    tap_size: int = 0
    tap_norms: int = 0
    tap_norm: NormSpec = NormSpec()
    masked: bool = False

    @property
    def takes_hidden(self) -> bool:
        """Whether the draft has a hidden state at all."""
        return self.kind != "tokens"

    def linears(self, hidden_size: int) -> dict[str, LayerSpec]:
        """Return its matrices by role, `joined` and `taps`."""
        found: dict[str, LayerSpec] = {}
        if self.tap_size:
            found["taps"] = LayerSpec(TAPS, "linear", (hidden_size, self.tap_size))
        if self.kind == "joined":
            found["joined"] = LayerSpec(JOINED, "linear", (hidden_size, 2 * hidden_size), self.bias)
        return found

    def norms(self, hidden_size: int) -> dict[str, NormTensor]:
        """Return its norms by role: `embed`, `hidden`, and `tap_0`, `tap_1`, ... in the order of the taps."""
        found: dict[str, NormTensor] = {}
        if self.embed_norm is not None:
            found["embed"] = NormTensor("input.embed_norm", (hidden_size,), self.embed_norm)
        if self.hidden_norm is not None:
            found["hidden"] = NormTensor("input.hidden_norm", (hidden_size,), self.hidden_norm)
        for index in range(self.tap_norms):
            shape = (self.tap_size // self.tap_norms,)
            found[f"tap_{index}"] = NormTensor(f"tap_norm.{index}", shape, self.tap_norm)
        return found

    def vectors(self, hidden_size: int) -> dict[str, int]:
        """Return name and size of its vectors, which are neither matrices nor norms."""
        if not self.masked:
            return {}
        return {MASK_HIDDEN: self.tap_size or hidden_size}

    def buffers(self, hidden_size: int) -> dict[str, int]:
        """Return the width of each step buffer: the caller fills `hidden`; `pair` has embedding and hidden state
        concatenated.
        """
        widths = {"hidden": hidden_size, "pair": 2 * hidden_size}
        if self.tap_norms:
            widths["normed_taps"] = self.tap_size
        return widths
