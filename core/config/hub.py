"""Models named by their hub name are downloaded (or found in the hub's cache).

Owns: the one call to huggingface_hub. Never does: guess names. Called by: resolve, when a reference is no local path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.api.errors import UserError

PATTERNS = ("*.json", "*.safetensors", "*.gguf", "*.model", "*.jinja", "*.txt", "*.tiktoken", "*.model.v*")


def download(
    name: str,
    *,
    revision: str | None,
    directory: str | None,
    token: str | None,
    patterns: Sequence[str] = PATTERNS,
) -> Path:
    """The local snapshot of `name` (`owner/model`), files that match `patterns`. Raises UserError when it cannot be had."""
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            name, revision=revision, cache_dir=directory, token=token, allow_patterns=list(patterns)
        )
    except (OSError, ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split())[:200]
        raise UserError(
            f"model '{name}': not a local path, and the hub did not give it ({type(error).__name__}: {cause}). "
            "Name an existing file or directory, or check the name, the network and --hf-token."
        ) from error
    return Path(path)
