"""The view of a projector file that a row gets: its keys below `clip.vision`, its tensors, and the text model.

Owns: the checks that every type shares. Never does: interpret a value. Called by: the rows, `attach`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from core.api.errors import CheckpointError
from core_loaders.gguf.keys import MAX_EXTENT, MAX_HEADS, MAX_LAYERS
from core_loaders.gguf.metadata import Metadata
from core_loaders.gguf.reader import GGUFTensor, read_header

ARCHITECTURE: Final = "clip"
PREFIX: Final = "clip.vision"
MAX_SIDE: Final = 8192
"""Largest side in pixels that a projector may ask a picture to have."""
LIMITS: Final = {
    "embedding_length": MAX_EXTENT,
    "feed_forward_length": MAX_EXTENT,
    "block_count": MAX_LAYERS,
    "attention.head_count": MAX_HEADS,
    "image_size": MAX_SIDE,
    "patch_size": MAX_SIDE,
    "preproc_image_size": MAX_SIDE,
    "spatial_merge_size": 64,
    "projector.scale_factor": 64,
    "n_wa_pattern": MAX_LAYERS,
    "window_size": MAX_SIDE,
    "image_min_pixels": 1 << 30,
    "image_max_pixels": 1 << 30,
}
"""Most of each key that is a number of something; the least is 1."""


class TowerSource:
    """The header of a projector file.

    metadata: of the file. tensors: by name. text: configuration of the text model.
    """

    def __init__(self, path: str, text: dict[str, Any]) -> None:
        header = read_header(path)
        self.metadata = Metadata(path, header.metadata)
        self.tensors: dict[str, GGUFTensor] = {tensor.name: tensor for tensor in header.tensors}
        self.text = text
        found = self.metadata.text("general.architecture")
        if found != ARCHITECTURE:
            raise self.fail(
                f"is a model of architecture '{found}'; expected a projector, whose architecture is 'clip'."
            )

    @property
    def path(self) -> str:
        """Return the path of the file, for errors."""
        return self.metadata.path

    @property
    def kind(self) -> str:
        """Return the type of the projector."""
        key = f"{PREFIX}.projector_type"
        # The first files of LLaVA have no type.
        default = "mlp" if self.metadata.flag("clip.has_llava_projector", False) else ""
        return self.metadata.text("clip.projector_type", self.metadata.text(key, default))

    def __contains__(self, name: str) -> bool:
        return f"{PREFIX}.{name}" in self.metadata

    def count(self, name: str, default: int | None = None) -> int:
        """Read a key of `LIMITS`."""
        return self.metadata.integer(f"{PREFIX}.{name}", 1, LIMITS[name], default)

    def number(self, name: str, low: float, high: float) -> float:
        """Read a number, as `Metadata.number` does."""
        return _decimal(self.metadata.number(f"{PREFIX}.{name}", low, high))

    def counts(self, name: str) -> list[int]:
        """Read a list of integers; empty where the file has none."""
        return self.metadata.items(f"{PREFIX}.{name}", int, optional=True)

    def colours(self, name: str) -> list[float]:
        """Read a number for each colour. Raises CheckpointError."""
        values = self.metadata.items(f"{PREFIX}.{name}", float, 3)
        if not all(math.isfinite(value) for value in values):
            self.metadata.fail(f"{PREFIX}.{name}", "three finite numbers")
        return [_decimal(value) for value in values]

    def activation(self, usual: str, gelu: str = "gelu") -> str:
        """Return the name of the MLP's activation. usual: where the file names none. gelu: the form that it means."""
        if self.metadata.flag("clip.use_silu", False):
            return "silu"
        return gelu if self.metadata.flag("clip.use_gelu", False) else usual

    def fail(self, problem: str) -> CheckpointError:
        """Return the error for a projector that cannot be served."""
        return CheckpointError(f"{self.path}: {problem} Name the model's own projector, or say --mmproj none.")


def _decimal(value: float) -> float:
    """Return the number that a configuration had before it was stored as float32: the one with the fewest digits."""
    return float(str(np.float32(value)))
