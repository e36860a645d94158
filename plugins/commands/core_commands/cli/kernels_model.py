"""Dry runs of a model on a chip that may be absent, for `core kernels`.

Owns: the configuration for the chip. Never does: run a model (`core_runtime.executor.dry_run` does). Called by: `core
kernels`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core.plugin.hookspecs import Device, Probe
from core.plugin.registry import PluginRegistry
from core_commands.cli.options import parse_engine_arguments
from core_config.resolve import resolve
from core_runtime.contracts.ahead import Run

MEMORY: Final = 1 << 40
"""Memory in bytes assumed for an absent chip: any model fits, and none of it is allocated."""


def run_of(words: Sequence[str]) -> Run:
    """Return a function that builds and runs the model of these words, which are those of `core serve`."""

    def run(chip: str) -> None:
        from core_runtime.executor.dry_run import dry_run

        dry_run(configured(words, chip))

    return run


def configured(words: Sequence[str], chip: str) -> EngineConfig:
    """Return the configuration that `core serve` would have on a chip. Raises ConfigError."""
    parsed = parse_engine_arguments(list(words))
    platform = "rocm" if chip.startswith("gfx") else "cuda"
    named = parsed.values.get("device")
    if named is not None:
        raise ConfigError([f"--device {named.value}: --sm says which device is meant; leave it out."])
    plugins = parsed.values.get("plugins")
    registry = PluginRegistry(words=os.environ.get("CORE_PLUGINS") if plugins is None else plugins.value)
    device = Device(f"{platform}:0", f"a {chip} that need not be here", MEMORY, profile=chip)
    for row in registry.rows("platform"):
        answer = Probe((device,)) if row.name == platform else Probe(unavailable="another one was asked for")
        registry.take_answer(row, answer)
    values = {**parsed.values, "device": device.name}
    resolution = resolve(values, context="explain", registry=registry, problems=parsed.problems)
    for warning in (*parsed.warnings, *resolution.warnings):
        print(f"core: warning: {warning}", file=sys.stderr)
    return resolution.engine
