"""A model that is located, claimed and resolved, with no other choice made.

Owns: those first stages by themselves. Never does: choose a platform, or plan memory.
Called by: commands that copy models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from core.api.errors import ConfigError
from core.plugin.hookspecs import LoadContext
from core.plugin.table import load_plugin
from core_config.arguments.sources import merge
from core_config.locating.projectors import NONE
from core_config.resolve import discover, find_model
from core_config.rules import Facts
from core_config.stages.attempt import Attempt
from core_config.stages.settings import Settings
from core_runtime.contracts import Loader
from core_runtime.specs.checkpoint import CheckpointManifest


def locate(arguments: Mapping[str, Any], problems: Sequence[str] = ()) -> tuple[Loader, CheckpointManifest, list[str]]:
    """Return the loader and manifest of `arguments["model"]`, and warnings. problems: problems of the command line.

    Raises ConfigError when there is any problem.
    """
    merged = merge(arguments, os.environ)
    settings = Settings(merged)
    if not settings.user_set("mmproj"):
        settings = settings.beside({"mmproj": NONE}, "copying")  # what is copied is the named model alone
    facts = Facts(settings, "explain", os.environ)
    further = [problem for problem in merged.problems if problem not in problems]
    attempt = Attempt(facts, [*problems, *further], list(merged.warnings))
    discover(attempt)
    checkpoint = attempt.answer_of(lambda: find_model(attempt))
    if checkpoint is None or attempt.problems:
        raise ConfigError(attempt.problems)
    context = LoadContext(arguments=attempt.settings["model_loader_extra_config"])
    loader: Loader = load_plugin(checkpoint.loader.manifest, context)
    return loader, checkpoint.manifest, attempt.warnings
