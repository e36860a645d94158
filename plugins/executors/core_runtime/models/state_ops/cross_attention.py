"""The op `cross_attention`: each token attends to the rows of an encoder, which are the same for the whole sequence (Whisper).

Owns: its meaning, and its spec. Never does: compute. Called by: families with such layers, backends.

H heads with D numbers each, S rows [S, W] of the encoder. Input of a token: q [H·D].

    k = k_proj·row, v = v_proj·row + bias                                  [S, H, D], once for a sequence
    out = softmax(q·k / sqrt(D))·v                                         each head of its own, over all S rows

State: k [S, H, D], then v [S, H, D]. Unlike the states of other ops it is written once, before a sequence's first token
(`FillsStates`), and no token changes it.

sizes:   heads (H), head_size (D), length (S), width (W).
params:  k_proj.weight [H·D, W], v_proj.weight [H·D, W], v_proj.bias [H·D].
"""

from __future__ import annotations

from typing import Final

from core.api.specs import StateSpec
from core_runtime.specs.decoder_spec import DecoderSpec

CROSS_ATTENTION: Final = "cross_attention"


def cross_attention(*, heads: int, head_size: int, length: int, width: int) -> StateSpec:
    """Return the spec of a layer with the op. length: rows of the encoder. width: numbers of a row."""
    size = heads * head_size
    return StateSpec(
        op=CROSS_ATTENTION,
        inputs={"q_proj": size},
        output_size=size,
        state_size=2 * length * size,
        sizes={"heads": heads, "head_size": head_size, "length": length, "width": width},
        params={"k_proj.weight": (size, width), "v_proj.weight": (size, width), "v_proj.bias": (size,)},
        bias=True,
    )


def encoder_shape(spec: DecoderSpec) -> tuple[int, int] | None:
    """Return (S, W) of the rows to which a model's tokens attend; None: there is no encoder."""
    for block in spec.blocks:
        for mixer in block.mixers:
            if isinstance(mixer, StateSpec) and mixer.op == CROSS_ATTENTION:
                return mixer.sizes["length"], mixer.sizes["width"]
    return None
