"""What a profile of an engine has beside its trace.

Owns: `ProfileSettings`, and how they are read from an `EngineConfig`. Never does: record. Called by: configuration (writes),
the profiler and the model's instance (read).
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api.config import EngineConfig

PROFILE: Final = "executor.profile"
"""Key of the settings among the arguments of plugins (`PluginChoices.arguments`)."""


class ProfileSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of profiles.

    layers:  each block of a model is a named range, for the profiler of torch and on CUDA for NVTX.
    tables:  sums by operation, and by layer where these are ranges, are written beside the trace.
    program: the profiler is a program around this process (`nsys`), which is told when to begin and end.
    """

    layers: bool = False
    tables: bool = True
    program: bool = False


def profile_settings_of(config: EngineConfig) -> ProfileSettings:
    """Return the settings of a configuration. Raises msgspec.ValidationError for invalid values."""
    return msgspec.convert(config.plugins.arguments.get(PROFILE, {}), ProfileSettings)
