"""Manifest of the `gguf` loader."""

from __future__ import annotations

from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of
from core_loaders.gguf.arguments import GGUFArguments
from core_loaders.gguf.filenames import models_among
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1

core_spec, core_load = manifest_of(
    "gguf",
    "GGUF files (versions 2 and 3), weights kept packed",
    "core_loaders.gguf.loader:GGUFLoader",
    arguments=GGUFArguments,
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim files that start with the magic number or end in .gguf, and directories whose only model is such a file."""
    if not isinstance(facts, FileFacts):
        return None
    if facts.magic.startswith(b"GGUF"):
        return "the file starts with GGUF"
    models = models_among(facts.names)
    if facts.is_directory:
        only = len(models) == 1 and "config.json" not in facts.names
        return "the directory holds one GGUF model and no config.json" if only else None
    return "the file name ends in .gguf" if models or facts.ref.lower().endswith(".gguf") else None
