"""Manifest of the `pt` loader."""

from __future__ import annotations

from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1

core_spec, core_load = manifest_of(
    "pt",
    "directories with config.json and *.bin, *.pt or *.pth; nothing in them is run",
    "core_loaders.pt.loader:PtLoader",
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim directories with a configuration and torch's files, but without safetensors files."""
    if not isinstance(facts, FileFacts) or not facts.is_directory or "config.json" not in facts.names:
        return None
    if any(name.endswith(".safetensors") for name in facts.names):
        return None
    weights = any(name.endswith((".bin", ".pt", ".pth")) for name in facts.names)
    return "the directory holds config.json and files of torch" if weights else None
