"""The description of a layer's rotary embedding. Torch-free.

Owns: `RopeSpec`. Never does: compute angles (`core_runtime.models.rope` does). Called by: families, which fill it in, and the
tables of cosines and sines.
"""

from __future__ import annotations

import msgspec


class RopeSpec(msgspec.Struct, frozen=True):
    """Rotary embedding of one layer.

    rope_type: `default`, `linear` (uses factor), `dynamic` (uses factor and original_max_position: the base grows with the
        engine's longest sequence beyond original_max_position), `llama3` (uses factor to original_max_position), `yarn` (uses
        factor, original_max_position and the fields after it), or `longrope` (each pair's frequency is divided by its number
        in `long_factors` when the engine's longest sequence exceeds original_max_position, else in `short_factors`).
    interleaved: whether pairs are (2i, 2i + 1) in the checkpoint; loading reorders their rows to the kernels' pairs,
        (i, i + D/2).
    attention_factor: factor of cos and sin.
    size: number of a head's leading dimensions that rotate; None: the whole head.
    turning: number of leading pairs that rotate, of all pairs of the `size` numbers; the others stay; None: all of them.
    backwards: whether pairs rotate in the opposite direction.
    axes: for each pair, which of the three positions of a row of media it rotates by: time, height or width (M-RoPE,
        arXiv 2409.12191); empty: rows of media have one position, as text has.
    """

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    interleaved: bool = False
    size: int | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    turning: int | None = None
    backwards: bool = False
    axes: tuple[int, ...] = ()
