"""The small vocabulary for checks of grammar backends.

Owns: the vocabulary. Never does: check. Called by: `core_kit.case` (loads backends with it), the checks of grammar
backends.
"""

from __future__ import annotations

from core_grammars.contract import GrammarVocabulary

STOP = 256
PADDING = 258
WORDS = ("true", "false", '{"', '":', "yes", "no", "maybe", "ab", "ä")


def vocabulary() -> GrammarVocabulary:
    """Return a vocabulary of all bytes, an end token, a special one, a padding one, and some words."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"", b"", b""]
    tokens += [word.encode() for word in WORDS]
    return GrammarVocabulary(tokens, {256: "<end>", 257: "<special>"}, [STOP], "of the kit")
