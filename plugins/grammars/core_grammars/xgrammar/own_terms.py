"""Validation and rewriting of a specification for xgrammar.

Owns: the two calls with xgrammar's own table. Never does: import xgrammar. Called by: the manifest and the backend.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from core.api.reason import Reason
from core.api.structured_outputs import GrammarSpec
from core_grammars.honoured import read_table
from core_grammars.keywords import unhonoured_spec
from core_grammars.lowering import lowered

TABLE = Path(__file__).with_name("honoured.toml")


def unhonoured(spec: GrammarSpec) -> list[Reason]:
    """Return the parts that xgrammar does not honour, by keyword and place."""
    return unhonoured_spec(_as_read(spec), read_table(TABLE))


def in_own_terms(spec: GrammarSpec) -> GrammarSpec:
    """Return the specification as it is compiled."""
    return lowered(_as_read(spec), read_table(TABLE))


def _as_read(spec: GrammarSpec) -> GrammarSpec:
    """Return a specification as xgrammar reads it: in structural tags, objects are closed where their schema does not
    say.
    """
    if spec.kind != "structural_tag":
        return spec
    return msgspec.structs.replace(spec, additional_properties=False)
