"""The launches of a model, remembered beside the kernels that Triton has compiled for them.

Owns: their files in Triton's cache, and what they depend on. Never does: compile. Called by: the warm-up.

A file that is gone, damaged, or of other code, costs a dry run of the model and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
import torch
import triton

from core_kernels.triton.compiling.launches import Launch
from core_kernels.triton.compiling.messages import encoded, launches_of

logger = logging.getLogger(__name__)

PACKAGES: Final = ("core_kernels", "core_attention", "core_models", "core_quantization", "core_runtime")
"""Packages whose code decides what is launched."""


def file_of(config: str, chip: str) -> Path:
    """Return the file for the launches of a configuration (see `WarmsUp`) on a chip."""
    facts = [config, chip, triton.__version__, torch.__version__, *_sources()]
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return Path(triton.knobs.cache.dir) / f"core-launches-{name}.json"


def read(file: Path) -> list[Launch] | None:
    """Return the launches in a file; None without a file that can be read."""
    try:
        return launches_of(msgspec.json.decode(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        logger.warning("%s is ignored: %s", file, error)
        return None


def write(file: Path, launches: Sequence[Launch]) -> None:
    """Write launches, so that a reader at any time finds all or none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(msgspec.json.encode([encoded(launch) for launch in launches]))
    part.replace(file)


def _sources() -> list[str]:
    """Return the names, sizes and times of the files of `PACKAGES`."""
    facts: list[str] = []
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for file in sorted(Path(folder).rglob("*.py")):
                status = file.stat()
                facts.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return facts
