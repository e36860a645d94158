"""Sentencepiece's compiled rules of normalization, checked before the `tokenizers` library follows them.

Owns: the check. Never does: apply a rule. Called by: `core_tokens.vocabularies.sentencepiece`.

The rules are a trie of 32-bit units and the texts that its leaves point to. The library does no bounds checks: a unit
that points beyond the table would crash the process in the middle of a request.
"""

from __future__ import annotations

import struct

from core.api.errors import CheckpointError

IS_VALUE = 1 << 31
IS_FAR = 1 << 9
BLOCK = 0xFF
"""Mask of a unit's block: its children are within one block of 256."""


def check_charsmap(data: bytes) -> None:
    """Raise CheckpointError when the rules point outside their own table."""
    if not _is_sound(data):
        raise CheckpointError(
            "The rules that rewrite characters (precompiled_charsmap) are damaged; load the file again, or name another "
            "tokenizer with --tokenizer."
        )


def _is_sound(data: bytes) -> bool:
    size = int.from_bytes(data[:4], "little")
    texts = data[4 + size :]
    if len(data) < 4 or size % 1024 or 4 + size > len(data):
        return False
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    units = struct.unpack(f"<{size // 4}I", data[4 : 4 + size])
    return all(_points_inside(index, unit, len(units), texts) for index, unit in enumerate(units))


def _points_inside(index: int, unit: int, count: int, texts: bytes) -> bool:
    """Whether a unit's children, or the text of a leaf, are within the table."""
    if unit & IS_VALUE:
        place = unit & ~IS_VALUE
        # A text begins at the start or directly after the end of another text.
        return place < len(texts) and (place == 0 or texts[place - 1] == 0)
    offset = (unit >> 10) << ((unit & IS_FAR) >> 6)
    return ((index ^ offset) | BLOCK) < count
