"""Compilation of structural tags to Lark grammars for llguidance.

Owns: the steps from a tag to its grammar. Never does: read a format (`tag_formats`) or write a rule (`tag_grammar`).
Called by: the backend.

Unsupported parts are rejected by name, so that another backend can take the tag.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from core.api.structured_outputs import GrammarSpec
from core_grammars.contract import GrammarVocabulary
from core_grammars.llguidance.tag_formats import Reading
from core_grammars.llguidance.tag_grammar import grammar
from core_grammars.llguidance.tag_tokens import TagTokens
from core_grammars.markers import Markers


class Tags:
    """Structural tags over one vocabulary.

    grammar_of: the whole Lark grammar of a specification of another kind, its options in the first line.
    """

    def __init__(self, vocabulary: GrammarVocabulary, grammar_of: Callable[[GrammarSpec], str]) -> None:
        self._markers = Markers(vocabulary.specials)
        self._tokens = TagTokens(vocabulary)
        self._grammar_of = grammar_of

    def lark(self, spec: GrammarSpec) -> str:
        """Return the Lark grammar of a tag, without options. Raises ValueError for unsupported parts."""
        try:
            tag = self._markers.as_tokens(json.loads(spec.text))
            reading = Reading(self._tokens, self._inner, spec)
            return grammar(reading.piece(tag.get("format"), ()))
        except (KeyError, TypeError, AttributeError):
            raise ValueError("the structural tag is not well formed") from None
        except RecursionError:
            raise ValueError("the structural tag is nested too deeply") from None

    def _inner(self, spec: GrammarSpec) -> str:
        """Return the Lark grammar of another kind, without options."""
        options, _, text = self._grammar_of(spec).partition("\n")
        if json.loads(options.removeprefix("%llguidance ")) != {"no_forcing": True}:
            raise ValueError("a grammar inside of a structural tag has options of its own (%llguidance)")
        return text
