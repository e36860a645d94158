"""How a draft takes in the target's hidden states, beside its tokens. Torch-free.

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
    """How embedding and hidden state enter the first block.

    kind: `tokens`: the embedding alone. `joined`: a matrix [H, 2H] of both, side by side. `paired`: the hidden state is the
        residual stream, and the attention of the first block reads both side by side.
    hidden_first: whether the hidden state is the left half.
    bias: whether the matrix of `joined` has a bias.
    embed_norm: of the embedding in front of that, or None.
    hidden_norm: of the hidden state in front of that, or None.
    norms_stream: with `paired`, whether the residual stream begins with the normed hidden state.
    tap_size: numbers of the target's taps side by side, which a matrix [H, tap_size] projects; 0: they are the hidden state.
    tap_norms: norms in front of that matrix, each of an equal part of the taps; 0: none.
    tap_norm: their kind.
    masked: whether there is a learned hidden state (of taps, where they are projected) for tokens that are not known yet.
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
        """Whether there is a hidden state at all."""
        return self.kind != "tokens"

    def linears(self, hidden_size: int) -> dict[str, LayerSpec]:
        """Its matrices by role, `joined` and `taps`."""
        found: dict[str, LayerSpec] = {}
        if self.tap_size:
            found["taps"] = LayerSpec(TAPS, "linear", (hidden_size, self.tap_size))
        if self.kind == "joined":
            found["joined"] = LayerSpec(JOINED, "linear", (hidden_size, 2 * hidden_size), self.bias)
        return found

    def norms(self, hidden_size: int) -> dict[str, NormTensor]:
        """Its norms by role: `embed`, `hidden`, and `tap_0`, `tap_1`, ... in the order of the taps."""
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
        """Name and size of its tensors that are neither."""
        if not self.masked:
            return {}
        return {MASK_HIDDEN: self.tap_size or hidden_size}

    def buffers(self, hidden_size: int) -> dict[str, int]:
        """Width of each buffer of a step: `hidden` is what the caller puts there, `pair` has both side by side."""
        widths = {"hidden": hidden_size, "pair": 2 * hidden_size}
        if self.tap_norms:
            widths["normed_taps"] = self.tap_size
        return widths
