"""Lookup of arguments by name: declared arguments first, then the table of foreign names.

Owns: that order. Never does: read a value. Called by: parser, sources.
"""

from __future__ import annotations

from core.args.schema import Field, schema


def named(name: str) -> Field | None:
    """Return the argument called `name`, with dashes or underscores; None when neither place has it."""
    declared = schema().named(name)
    if declared is not None:
        return declared
    from core_config.arguments import foreign  # the table is read for names that are not declared only

    row = foreign.named(name)
    return None if row is None else row.field


def short(name: str) -> Field | None:
    """Return the argument with the short name `name`, without its dash; None when neither place has it."""
    declared = schema().short(name)
    if declared is not None:
        return declared
    from core_config.arguments import foreign

    row = foreign.with_short(name)
    return None if row is None else row.field


def flags() -> list[str]:
    """All long flags, for hints."""
    from core_config.arguments import foreign

    return [*schema().flags(), *(row.flag for row in foreign.names())]
