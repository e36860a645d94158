"""Attribution of an exception to the plugin whose code raised it, by the frames of its traceback.

Owns: that search and the error message. Never does: catch anything, so calls into plugins cost nothing until one raises.
Called by: `PluginTable` (worker, engine core) and the registry (config), where their callers catch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import FrameType

from core.api.errors import CoreError, PluginError
from core.own_packages import FRAMEWORK
from core.plugin.discovery import label
from core.plugin.manifest import Manifest


def blamed(error: Exception, manifests: Iterable[Manifest]) -> Exception:
    """Return a PluginError that names the plugin whose code raised `error`, or `error` itself when no plugin did.

    manifests: manifests of the plugins whose objects were loaded.
    An error that a plugin raises on purpose for the user is returned unchanged.
    """
    is_for_the_user = isinstance(error, CoreError) and not isinstance(error, PluginError)
    is_named = isinstance(error, PluginError) and error.plugin is not None
    if is_for_the_user or is_named:
        return error
    loaded = list(manifests)
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        guilty = _nearest(frame, loaded)
        if guilty:
            sentence = _sentence(guilty, error, frame, line)
            named = PluginError(sentence, guilty[0].row)
            named.__cause__ = error
            return named
    return error


def _nearest(frame: FrameType, manifests: list[Manifest]) -> list[Manifest]:
    """Return the plugins whose modules lie nearest to the frame's: several that share a module, none for other code."""
    name = str(frame.f_globals.get("__name__", ""))
    if name.partition(".")[0] in FRAMEWORK:
        return []
    nearest: list[Manifest] = []
    best = 1  # modules without a common leading part have nothing to do with each other
    for manifest in manifests:
        closeness = max((_common(name, module) for module in manifest.modules), default=0)
        if closeness > best:
            best = closeness
            nearest = []
        if closeness == best:
            nearest.append(manifest)
    return nearest


def _common(one: str, other: str) -> int:
    """Count the leading parts that two dotted names share."""
    count = 0
    pairs = zip(one.split("."), other.split("."), strict=False)
    for first, second in pairs:
        if first != second:
            break
        count += 1
    return count


def _sentence(guilty: list[Manifest], error: Exception, frame: FrameType, line: int) -> str:
    who = " or ".join(label(manifest.row) for manifest in guilty)
    code = frame.f_code
    said = " ".join(str(error).split()).rstrip(".")
    if not isinstance(error, CoreError):
        name = type(error).__name__
        said = f"{name}: {said}" if said else name
    return f"{who}: {code.co_qualname} failed: {said} ({code.co_filename}, line {line})."
