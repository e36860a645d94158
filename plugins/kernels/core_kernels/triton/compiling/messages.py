"""What an engine and the process that compiles for it send each other: lines of JSON, from which nothing is unpickled.

Owns: their forms, and launches as JSON, which are remembered on disk in the same form. Never does: send.
Called by: the warm-up, its process.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import msgspec
import torch
import triton.language as tl

from core_kernels.triton.compiling.launches import Launch
from core_runtime.contracts.ahead import CompiledAhead


class Task(msgspec.Struct, frozen=True):
    """What to compile.

    path: `sys.path` of the engine. run, config: see `WarmsUp`.
    chip: of the engine's device. jobs: processes that compile.
    """

    path: list[str]
    run: str
    config: str
    chip: str
    jobs: int


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of three: a compiled kernel, the launches after all kernels, or why they cannot be known.

    kernel: the outcome; done, count: how many kernels are finished, of how many.
    launches: see `encoded`.
    """

    kernel: CompiledAhead | None = None
    done: int = 0
    count: int = 0
    launches: list[Any] | None = None
    skipped: str = ""


def encoded(launch: Any) -> Any:
    """Return a launch, or a part of it, as JSON has it. Raises TypeError for what cannot be written so."""
    if launch is None or isinstance(launch, bool | int | float | str):
        return launch
    if isinstance(launch, tl.dtype):
        return {"triton": launch.name}
    if isinstance(launch, torch.dtype):
        return {"torch": str(launch).removeprefix("torch.")}
    kind = type(launch)
    name = "" if kind is tuple else f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(launch, tuple):
        return {"made": name, "parts": [encoded(part) for part in launch]}
    if dataclasses.is_dataclass(kind):
        return {"made": name, "parts": [encoded(getattr(launch, field.name)) for field in dataclasses.fields(kind)]}
    raise TypeError(f"a kernel has a constant of type {name}; expected numbers, texts, types, tuples and dataclasses")


def decoded(words: Any) -> Any:
    """Return what `encoded` was given. Raises what a damaged text raises."""
    if not isinstance(words, dict):
        return words
    if "triton" in words:
        return tl.dtype(words["triton"])
    if "torch" in words:
        return getattr(torch, words["torch"])
    parts = [decoded(part) for part in words["parts"]]
    module, _, name = words["made"].partition(":")
    kind = getattr(importlib.import_module(module), name) if module else tuple
    if not (isinstance(kind, type) and (issubclass(kind, tuple) or dataclasses.is_dataclass(kind))):
        raise TypeError(f"{words['made']} is neither a kind of tuple nor a dataclass")
    return tuple(parts) if kind is tuple else kind(*parts)


def launches_of(words: list[Any]) -> list[Launch]:
    """Return launches from their encoded form."""
    return [decoded(launch) for launch in words]
