"""The table of architectures of GGUF files: all rows together.

Owns: the table. Never does: know a row. Called by: `core_loaders.gguf.translate`.
"""

from __future__ import annotations

from core_loaders.gguf.architectures import Architecture
from core_loaders.gguf.rows import early, encoders, llamas, mixtures, states, windows


def architectures() -> dict[str, Architecture]:
    """Return the rows by name in `general.architecture`."""
    decoders = {**llamas.ROWS, **windows.ROWS, **early.ROWS, **mixtures.ROWS, **states.ROWS}
    return {**decoders, **encoders.ROWS}
