"""The profiler's settings, from its argument.

Owns: the construction of `ProfilerConfig`. Never does: profile. Called by: engine.
"""

from __future__ import annotations

from typing import Any

from core.api.config import ProfilerConfig
from core_config.stages.settings import underscored
from core_runtime.specs.profile_settings import ProfileSettings

PREFIX = "torch_profiler_"
OF_WINDOW = ("delay_iterations", "max_iterations", "wait_iterations", "warmup_iterations", "active_iterations")
"""Keys that say which steps are recorded."""
OF_SETTINGS = ("torch_profiler_dump_cuda_time_total",)
"""Keys about what is written beside a trace."""


def profile_settings(given: dict[str, Any] | None, *, layers: bool) -> ProfileSettings:
    """Return what a profile has beside its trace. layers: whether blocks are ranges."""
    keys = underscored(given or {})
    tables = keys.get(OF_SETTINGS[0], True)
    return ProfileSettings(layers=layers, tables=bool(tables), program=keys.get("profiler") == "cuda")


def profiler_config(given: dict[str, Any] | None, problems: list[str]) -> ProfilerConfig | None:
    """Return the config, None where no profiler is named. A missing directory is a problem."""
    keys = underscored(given or {})
    profiler = keys.pop("profiler", None)
    if profiler is None:
        return None
    values = {
        name.removeprefix(PREFIX): value for name, value in keys.items() if name not in (*OF_WINDOW, *OF_SETTINGS)
    }
    directory = values.pop("dir", "")
    if not directory and profiler == "torch":
        problems.append(
            "--profiler-config.profiler torch: traces need a directory; give --profiler-config.torch_profiler_dir."
        )
    return ProfilerConfig(directory=directory, **values)


def profile_window(given: dict[str, Any] | None) -> dict[str, int] | None:
    """Return how many steps are passed over, and how many are recorded at most; None where no step is chosen."""
    keys = underscored(given or {})
    delay, wait, warm_up, length = (
        keys.get(name, 0) for name in ("delay_iterations", *OF_WINDOW[2:4], "max_iterations")
    )
    if wait or warm_up:
        active = keys.get("active_iterations", 5)
        length = min(length, active) if length else active
    window = {"delay": delay + wait + warm_up, "length": length}
    return window if any(window.values()) else None
