"""Manifest of the `tensorizer` loader."""

from __future__ import annotations

from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of
from core_loaders.tensorizer.arguments import TensorizerArguments
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


core_spec, core_load = manifest_of(
    "tensorizer",
    "files written by tensorizer, beside config.json; only when asked for",
    "core_loaders.tensorizer.loader:TensorizerLoader",
    arguments=TensorizerArguments,
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim nothing: users must request this loader."""
    return None
