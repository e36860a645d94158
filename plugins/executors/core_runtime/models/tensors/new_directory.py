"""Atomic creation of a model directory: it is complete, or does not exist.

Owns: its place, and the files other than weights. Never does: write weights. Called by: commands that save models.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from core.api.errors import UserError
from core_runtime.specs.checkpoint import CheckpointManifest

WEIGHTS = (".weights", ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npy", ".npz", ".index.json")
"""Endings of files that contain weights or index them."""
DESCRIBED = ("config.json", "generation_config.json", "params.json")


@contextlib.contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a directory to write to. It becomes `out` when the context ends without an error, and is removed otherwise.

    Raises UserError when `out` is in use, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: is there already, and is not empty; name a new directory.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Next to `out`, so that the rename at the end stays on one file system.
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror}).") from None
    try:
        yield part
        # mkdtemp creates a directory that only its owner can read.
        part.chmod(0o755)
        os.replace(part, out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}).") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)  # it only exists if the rename did not happen


def describe(directory: Path, manifest: CheckpointManifest) -> None:
    """Write the configuration as it was read, and copy all other files that are not weights: tokenizer, templates,
    code.
    """
    _write_json(directory / "config.json", manifest.config)
    if manifest.generation:
        _write_json(directory / "generation_config.json", manifest.generation)
    source = Path(manifest.ref).expanduser()
    if not source.is_dir():
        return
    for path in sorted(source.iterdir()):
        is_other = not path.name.endswith(WEIGHTS) and path.name not in DESCRIBED and not path.name.startswith(".")
        if is_other and path.is_file():
            shutil.copyfile(path, directory / path.name)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
