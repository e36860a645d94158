"""Recording and compilation, from the arguments that control them.

Owns: the meaning of those arguments, and the construction of `CompilationConfig`. Never does: judge whether they agree
(rules do).
Called by: the rules, the engine's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.api.config import CompilationConfig
from core.args.schema import flag_of
from core_config.stages.settings import Settings
from core_runtime.specs.graph_sizes import LARGEST, graph_sizes, powers_of_two

COMPILER: Final = "inductor"
"""Name of the plugin that compiles."""
DECODES: Final = "FULL_DECODE_ONLY"
"""Mode that records no steps with prompts."""
PREFIX: Final = flag_of("compilation_config")
TWICE: Final = ("cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""Arguments that are also keys of `--compilation-config`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of one argument. text: the argument and its value, as a user writes them."""

    text: str
    value: Any


def recording_statements(settings: Settings) -> list[Statement]:
    """Return all statements of the user about the recording of steps."""
    keys = settings.mapping("compilation_config")
    found: list[Statement] = []
    if settings.user_set("enforce_eager"):
        is_eager = settings["enforce_eager"]
        found.append(Statement("--enforce-eager" if is_eager else "--no-enforce-eager", not is_eager))
    level = settings["optimization_level"]
    if level is not None:
        found.append(Statement(f"--optimization-level {level}", level > 0))
    mode = keys.get("cudagraph_mode")
    if mode is not None:
        found.append(Statement(f"{PREFIX}.cudagraph_mode {mode}", mode != "NONE"))
    older = keys.get("use_cudagraph")
    if older is not None:
        found.append(Statement(f"{PREFIX}.use_cudagraph {str(older).lower()}", older))
    return found


def compiling_statements(settings: Settings) -> list[Statement]:
    """Return all statements of the user about compilation. Levels 1 and 2 leave it to `--kernels`."""
    keys = settings.mapping("compilation_config")
    found: list[Statement] = []
    if settings.user_set("kernels"):
        names = settings["kernels"]
        found.append(Statement(f"--kernels {','.join(names)}", COMPILER in names))
    level = settings["optimization_level"]
    if level in (0, 3):
        found.append(Statement(f"--optimization-level {level}", level == 3))
    for name in ("mode", "level"):
        mode = keys.get(name)
        if mode is not None:
            found.append(Statement(f"{PREFIX}.{name} {mode}", mode > 0))
    if keys.get("backend") == "eager":
        found.append(Statement(f"{PREFIX}.backend eager", False))
    return found


def repeated_statements(settings: Settings, name: str) -> list[Statement]:
    """Return the values of an argument that is also a key, from every place where it was given."""
    found: list[Statement] = []
    if settings.user_set(name) and settings[name] is not None:
        found.append(Statement(f"{flag_of(name)} {_written(settings[name])}", _plain(settings[name])))
    key = settings.mapping("compilation_config").get(name)
    if key is not None:
        found.append(Statement(f"{PREFIX}.{name} {_written(key)}", _plain(key)))
    return found


def recorded_sizes(settings: Settings) -> tuple[int, ...] | None:
    """Return the sizes that the arguments name; None: the platform's."""
    sizes = _value(settings, "cudagraph_capture_sizes")
    largest = _value(settings, "max_cudagraph_capture_size")
    if sizes is not None:
        return tuple(size for size in sizes if largest is None or size <= largest)
    if settings["optimization_level"] == 1:
        return tuple(powers_of_two(LARGEST if largest is None else largest))
    return None if largest is None else tuple(graph_sizes(largest))


def compilation_config(settings: Settings) -> CompilationConfig:
    """Build the config from the argument and its keys."""
    keys = settings.mapping("compilation_config")
    mixed = keys.get("cudagraph_mode") != DECODES
    return CompilationConfig(sizes=recorded_sizes(settings), mixed=mixed, cache_dir=keys.get("cache_dir") or "")


def _value(settings: Settings, name: str) -> Any:
    said = repeated_statements(settings, name)
    return said[0].value if said else None


def _plain(value: Any) -> Any:
    """Return a list of sizes without order and repetition, for comparison."""
    return tuple(sorted(set(value))) if isinstance(value, list) else value


def _written(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
