"""Import paths of logits processors that a program passes as classes, so that a worker can import them.

Owns: `with_paths`. Never does: import or call one. Called by: `LLMEngine` and `AsyncLLM`, with their engine arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.errors import ConfigError

ARGUMENT = "logits_processors"
MAIN = "__main__"


def with_paths(arguments: Mapping[str, Any], *, same_process: bool) -> dict[str, Any]:
    """Return engine arguments, with each class of `logits_processors` as `module:Class`.

    same_process: whether the worker runs in this process, where the program's own module is imported under its name.
    Raises ConfigError for a class that cannot be imported by its path.
    """
    given = arguments.get(ARGUMENT)
    if not isinstance(given, list | tuple):
        return dict(arguments)
    problems: list[str] = []
    paths: list[Any] = []
    for entry in given:
        path = f"{entry.__module__}:{entry.__qualname__}" if isinstance(entry, type) else entry
        problem = _problem(entry, same_process=same_process)
        if problem:
            problems.append(f"{ARGUMENT}: {path} {problem}")
        paths.append(path)
    if problems:
        raise ConfigError(problems)
    return {**arguments, ARGUMENT: paths}


def _problem(entry: Any, *, same_process: bool) -> str:
    """Return why a worker could not import an entry; empty if it could."""
    if isinstance(entry, str):
        return ""
    if not isinstance(entry, type):
        return f"is a {type(entry).__name__}; expected a name, an import path, or a class."
    if "<locals>" in entry.__qualname__:
        return "is defined in a function, where nothing finds it; move it to the level of its module."
    if entry.__module__ == MAIN and not same_process:
        return "is defined in the program itself, which the engine's process does not import; move it to a module of its own."
    return ""
