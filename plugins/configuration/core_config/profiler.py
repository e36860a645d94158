"""The profiler's settings, from its argument.

Owns: the construction of `ProfilerConfig`. Never does: profile. Called by: engine.
"""

from __future__ import annotations

from typing import Any

from core.api.config import ProfilerConfig
from core_config.stages.settings import underscored

PREFIX = "torch_profiler_"


def profiler_config(given: dict[str, Any] | None, problems: list[str]) -> ProfilerConfig | None:
    """Return the config, None where no profiler is named. A missing directory is a problem."""
    keys = underscored(given or {})
    if keys.pop("profiler", None) is None:
        return None
    values = {name.removeprefix(PREFIX): value for name, value in keys.items()}
    directory = values.pop("dir", "")
    if not directory:
        problems.append(
            "--profiler-config.profiler torch: traces need a directory; give --profiler-config.torch_profiler_dir."
        )
    return ProfilerConfig(directory=directory, **values)
