"""What lies behind a model reference, before any loader is asked.

Owns: `FileFacts` of a reference, and the question whether a reference means a path. Never does: parse a file.
Called by: resolve.
"""

from __future__ import annotations

import re
from pathlib import Path

from core.api.checkpoint import FileFacts
from core.api.errors import CheckpointError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(ref: str) -> bool:
    """Whether `ref` can only be a hub name: nothing local is called so, and it is spelled `owner/model`."""
    return not Path(ref).expanduser().exists() and bool(_HUB_NAME.fullmatch(ref)) and not ref.lower().endswith(".gguf")


def file_facts(ref: str) -> FileFacts:
    """Names and first bytes at a local path. Raises CheckpointError when nothing is there."""
    path = Path(ref).expanduser()
    try:
        path = path.resolve()
        if path.is_dir():
            return FileFacts(ref, str(path), True, tuple(sorted(entry.name for entry in path.iterdir())))
        with path.open("rb") as file:
            return FileFacts(ref, str(path), False, (path.name,), file.read(8))
    except FileNotFoundError:
        raise CheckpointError(f"model '{ref}': no such file or directory.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"model '{ref}': cannot be read: {error}.") from error
