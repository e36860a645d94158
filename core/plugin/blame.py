"""Whose fault an exception is: the plugin whose code raised it, told by the frames of its traceback.

Owns: that search and its sentence. Never does: catch anything, so calls into plugins cost nothing until one raises.
Called by: `PluginTable` (worker, engine core) and the registry (config), where their callers catch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import FrameType

from core.api.errors import CoreError, PluginError
from core.plugin.discovery import label
from core.plugin.manifest import Manifest


def blamed(error: Exception, manifests: Iterable[Manifest]) -> Exception:
    """A PluginError that names the plugin in whose code `error` was raised, or `error` itself when that is nobody's.

    manifests: of plugins whose object was loaded. An error that a plugin raises on purpose for the user stays as it is.
    """
    settled = isinstance(error, CoreError) and not isinstance(error, PluginError)
    if settled or (isinstance(error, PluginError) and error.plugin is not None):
        return error
    loaded = list(manifests)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        guilty = _nearest(frame, loaded)
        if guilty:
            named = PluginError(_sentence(guilty, error, frame, line), guilty[0].row)
            named.__cause__ = error
            return named
    return error


def _nearest(frame: FrameType, manifests: list[Manifest]) -> list[Manifest]:
    """The plugins whose modules lie nearest to the frame's; more than one when they share a module, none for other code."""
    name = str(frame.f_globals.get("__name__", ""))
    if name.partition(".")[0] == "core":
        return []
    closeness = [max((_common(name, module) for module in manifest.modules), default=0) for manifest in manifests]
    best = max(closeness, default=0)
    return [manifest for manifest, close in zip(manifests, closeness, strict=True) if close == best] if best else []


def _common(one: str, other: str) -> int:
    """Leading parts of two dotted names that are equal."""
    count = 0
    for mine, theirs in zip(one.split("."), other.split("."), strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _sentence(guilty: list[Manifest], error: Exception, frame: FrameType, line: int) -> str:
    who = " or ".join(label(manifest.row) for manifest in guilty)
    text = " ".join(str(error).split()).rstrip(".")
    said = text if isinstance(error, CoreError) else f"{type(error).__name__}{': ' + text if text else ''}"
    return f"{who}: {frame.f_code.co_qualname} failed: {said} ({frame.f_code.co_filename}, line {line})."
