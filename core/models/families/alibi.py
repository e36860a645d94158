"""Attention whose scores fall with the distance (ALiBi, arXiv 2108.12409). Torch-free.

Owns: the slopes of heads. Never does: read a configuration. Called by: rows, to adjust their models.
"""

from __future__ import annotations

import msgspec

from core.api.decoder_spec import DecoderSpec
from core.api.specs import AttentionSpec

USUAL_MOST = 8.0


def slopes(num_heads: int, most: float = USUAL_MOST) -> tuple[float, ...]:
    """Of each head: powers of two whose exponents divide 0..`most` equally.

    Heads that are no power of two take every second slope of the next one, then those between, as many as they need.
    """
    count = 1
    while count < num_heads:
        count *= 2
    exponents = [most * number / count for number in range(1, count + 1)]
    if count != num_heads:
        exponents = [*exponents[1::2], *exponents[::2]]
    return tuple(2.0**-exponent for exponent in exponents[:num_heads])


def with_slopes(spec: DecoderSpec, values: tuple[float, ...]) -> DecoderSpec:
    """A model whose heads all have these slopes."""
    blocks = []
    for block in spec.blocks:
        mixer = block.mixer
        if isinstance(mixer, AttentionSpec):
            mixer = msgspec.structs.replace(mixer, alibi=True)
        blocks.append(msgspec.structs.replace(block, mixer=mixer))
    heads = msgspec.structs.replace(spec.heads, slopes=values)
    return msgspec.structs.replace(spec, heads=heads, blocks=tuple(blocks))
