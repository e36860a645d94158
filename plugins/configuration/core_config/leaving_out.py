"""Arguments as they are without one plugin.

Owns: how each argument that may name a plugin is written without it. Never does: decide that a plugin is left out, or
block it in the registry. Called by: the quarantine, `core plugins doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.config import ResolvedPlugin
from core.args.schema import schema
from core.plugin.kinds import kind_named, normalize


def without(row: ResolvedPlugin, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of the arguments that name `row`, or that are its own; empty where none does.

    values: plain values of arguments, by name.
    """
    kind = kind_named(row.kind)
    changed: dict[str, Any] = {}
    named = False
    if kind.argument is not None and values.get(kind.argument):
        given = values[kind.argument]
        kept = _without(row, given)
        named = kept != given
        if named:
            changed[kind.argument] = kept or _default(kind.argument)
    own = kind.config_argument
    if own is not None and own != kind.argument and values.get(own):
        rest = _arguments_left(row, values[own], is_named=named)
        if rest != values[own]:
            changed[own] = rest
    words = values.get("plugins")
    if words:
        kept_words = ",".join(word for word in words.split(",") if not _means(row, word.strip()))
        if kept_words != words:
            changed["plugins"] = kept_words or None
    return changed


def _arguments_left(row: ResolvedPlugin, given: Mapping[str, Any], *, is_named: bool) -> Mapping[str, Any]:
    """Return the own arguments of a kind's plugins without those of `row`. is_named: whether the user named it."""
    if kind_named(row.kind).by_name:
        return {name: keys for name, keys in given.items() if normalize(name) != row.name}
    # The arguments of the only plugin of a kind are those of the one that the user named.
    return {} if is_named else given


def _without(row: ResolvedPlugin, given: Any) -> Any:
    """Return an argument's value without a plugin; None or an empty one when nothing is left."""
    if isinstance(given, Mapping):  # --speculative-config.method
        return None if _means(row, str(given.get("method", ""))) else given
    if isinstance(given, str):
        parts = [part for part in given.split(",") if not _means(row, part.rpartition("=")[2])]
        return ",".join(parts)
    return [name for name in given if not _means(row, str(name))]


def _means(row: ResolvedPlugin, word: str) -> bool:
    """Whether a word names `row`: NAME, KIND.NAME, either of them after `DISTRIBUTION:`."""
    owner, colon, name = word.strip().rpartition(":")
    if normalize(name) not in (row.name, f"{row.kind}.{row.name}"):
        return False
    return not colon or not owner or normalize(owner) == normalize(row.distribution)


def _default(argument: str) -> Any:
    return schema().fields[argument].default
