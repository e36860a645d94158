"""A plugin's own arguments, for `--help=KIND.NAME` and `core plugins show`.

Owns: reading types and descriptions from a plugin's Struct. Never does: import a plugin other than the one named.
Called by: the commands.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from core.api.errors import UserError, nearest
from core.args.schema import flag_of
from core.args.show import Section
from core.plugin.kinds import KINDS, kind_named
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry


def plugin_sections(word: str) -> list[Section]:
    """Help for `KIND.NAME`. Raises UserError."""
    kind, _, name = word.partition(".")
    kinds = [known.name for known in KINDS]
    if kind not in kinds:
        raise UserError(f"--help={word}: no such kind of plugin; known: {', '.join(kinds)}.{nearest(kind, kinds)}")
    manifest = PluginRegistry().get(kind, name)
    rows = tuple((f"{flag} {kind_of}", text) for flag, kind_of, text in own_arguments(manifest))
    title = f"{kind} {manifest.row.name}: {manifest.spec.summary}"
    return [Section(title, rows or (("(none)", "It takes no arguments of its own."),))]


def plugins_with(word: str) -> list[Section]:
    """Return arguments of usable plugins whose name or description contains `word`, a section per plugin."""
    wanted = word.lower().lstrip("-").replace("-", "_")
    found: list[Section] = []
    for manifest in usable_manifests(PluginRegistry()):
        rows = []
        for flag, kind_of, text in own_arguments(manifest):
            name = flag.lstrip("-").replace("-", "_").lower()
            if wanted in name or wanted.replace("_", " ") in text.lower():
                rows.append((f"{flag} {kind_of}", text))
        if rows:
            title = f"{manifest.row.kind} {manifest.row.name}: {manifest.spec.summary}"
            found.append(Section(title, tuple(rows)))
    return found


def usable_manifests(registry: PluginRegistry) -> list[Manifest]:
    """Return manifests that are valid and not blocked, without aliases; no device is probed."""
    registry.rehearse([row for row in registry.rows() if not registry.own(row)], ())
    found = [manifest for kind in KINDS for _, manifest in registry.candidates(kind.name)]
    return [manifest for manifest in found if isinstance(manifest, Manifest) and manifest.spec.alias_of is None]


def own_arguments(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Return (flag, type, description with default) of each of a plugin's arguments."""
    struct, kind = manifest.spec.arguments, kind_named(manifest.row.kind)
    if struct is None or kind.config_argument is None:
        return []
    prefix = flag_of(kind.config_argument)
    if kind.by_name:
        prefix += f".{manifest.row.name}"
    hints = typing.get_type_hints(struct, include_extras=True)
    found = []
    for info in msgspec.structs.fields(struct):
        hint = hints[info.name]
        default = "" if info.required else f" Default: {_default(info)}."
        found.append((f"{prefix}.{info.name}", _type_name(hint), _description(hint) + default))
    return found


def _default(info: msgspec.structs.FieldInfo) -> Any:
    return info.default if info.default is not msgspec.NODEFAULT else info.default_factory()


def _description(hint: Any) -> str:
    for extra in getattr(hint, "__metadata__", ()):
        text = getattr(extra, "description", None)
        if text:
            return f"{text[0].upper()}{text[1:].rstrip('.')}."
    return ""


def _type_name(hint: Any) -> str:
    """Format a type, such as `int`, `auto|none|int8`, `int|none`."""
    if hasattr(hint, "__metadata__"):
        return _type_name(typing.get_args(hint)[0])
    if hint is type(None):
        return "none"
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(str(value) for value in typing.get_args(hint))
    members = typing.get_args(hint)
    if members and typing.get_origin(hint) not in (list, dict, tuple):
        return "|".join(_type_name(member) for member in members)
    return getattr(hint, "__name__", str(hint))
