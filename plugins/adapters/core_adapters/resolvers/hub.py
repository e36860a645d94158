"""Adapters at the hub, each under the name of its repository.

Owns: `HubResolver`. Never does: read an adapter, or download anything but an adapter's files. Called by: servers, whose
operator has named it: a client's request then has files downloaded.
"""

from __future__ import annotations

import re
from typing import Final

REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""Names of repositories: OWNER/NAME."""
FILES: Final = ("adapter_config.json", "adapter_model.*", "tokenizer*", "*.jinja")
"""An adapter's files, and its chat template."""


class HubResolver:
    """The resolver of repositories of the hub; the environment (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE) holds as elsewhere."""

    def find(self, name: str) -> str | None:
        """Download the adapter called OWNER/NAME, as in `Resolver`."""
        if not REPOSITORY.fullmatch(name):
            return None
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

        try:
            return snapshot_download(name, allow_patterns=list(FILES))
        except (RepositoryNotFoundError, LocalEntryNotFoundError):
            return None
