"""The small vocabulary that grammar backends are checked on.

Owns: it. Never does: check. Called by: `core_kit.case` (loads backends with it), the checks of grammar backends.
"""

from __future__ import annotations

from core_grammars.contract import GrammarVocabulary

STOP = 256
PADDING = 258
WORDS = ("true", "false", '{"', '":', "yes", "no", "maybe", "ab", "ä")


def vocabulary() -> GrammarVocabulary:
    """All bytes, a token that ends answers, a special one, one that pads, and some words."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"", b"", b""]
    tokens += [word.encode() for word in WORDS]
    return GrammarVocabulary(tokens, {256: "<end>", 257: "<special>"}, [STOP], "of the kit")
