"""A model reference as the user wrote it: a path, a hub name or a URL, with the choice of one file among several.

Owns: the spelling of references. Never does: touch the network, or raise (a later stage reports a missing path).
Called by: checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_NAME = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(rf"{_NAME}(/{_NAME})?")
_HUB_FILE = re.compile(rf"(?P<name>{_NAME}/{_NAME})/(?P<file>[\w./ -]+\.gguf)", re.IGNORECASE)
_HUB_QUANT = re.compile(rf"(?P<name>{_NAME}/{_NAME}):(?P<quant>[\w.-]+)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference.

    kind: location of the model.
    name: the path, `owner/model`, or the URL.
    quant: the part of a file's name that chooses one GGUF model of several, or None.
    file: the one file of a hub repository, or None.
    """

    kind: Literal["path", "hub", "url"]
    name: str
    quant: str | None = None
    file: str | None = None


def read_reference(ref: str) -> Reference:
    """Parse `ref`. An existing local path of that name always takes precedence."""
    if is_url(ref):
        return Reference("url", ref)
    if _exists(ref):
        return Reference("path", ref)
    if is_hub_name(ref):
        return Reference("hub", ref)
    folder, _, quant = ref.rpartition(":")
    if folder and quant and _exists(folder):
        return Reference("path", folder, quant=quant)
    chosen = _HUB_QUANT.fullmatch(ref)
    if chosen is not None:
        return Reference("hub", chosen["name"], quant=chosen["quant"])
    named = _HUB_FILE.fullmatch(ref)
    first = ref.partition("/")[0]
    if named is not None and not _exists(first):  # if a folder of that name exists, it is a mistyped path
        return Reference("hub", named["name"], file=named["file"])
    return Reference("path", ref)


def is_hub_name(ref: str) -> bool:
    """Whether `ref` can only be a hub name: there is no local path of that name, and it is spelled `owner/model`."""
    if ref.lower().endswith(".gguf") or not _HUB_NAME.fullmatch(ref):
        return False
    return not _exists(ref)


def is_url(ref: str) -> bool:
    """Whether `ref` names a location that only a loader can reach, such as `store://bucket/model`."""
    return "://" in ref


def _exists(ref: str) -> bool:
    try:
        return Path(ref).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # a null byte, a name too long, no home directory
        return False
