"""The view of a file that a row gets: its metadata under the architecture's name, and its tensors.

Owns: the prefix of keys. Never does: interpret a value. Called by: `translate`, `rotary`, rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.api.errors import CheckpointError
from core_loaders.gguf.keys import KINDS
from core_loaders.gguf.metadata import Metadata
from core_loaders.gguf.reader import GGUFTensor


class Source:
    """The header of one model.

    metadata: of the file (of a split one: of its first part).
    prefix: name of the architecture.
    tensors: by name.
    """

    def __init__(self, metadata: Metadata, prefix: str, tensors: Sequence[GGUFTensor]) -> None:
        self.metadata = metadata
        self.prefix = prefix
        self.tensors = {tensor.name: tensor for tensor in tensors}

    @property
    def path(self) -> str:
        """Return the path of the file, for errors."""
        return self.metadata.path

    def key(self, name: str) -> str:
        """Return the full metadata key."""
        return f"{self.prefix}.{name}"

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.metadata

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Read an integer, as `Metadata.integer` does."""
        return self.metadata.integer(self.key(name), low, high, default)

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Read a number, as `Metadata.number` does."""
        return self.metadata.number(self.key(name), low, high, default)

    def flag(self, name: str, default: bool) -> bool:
        """Read a boolean, as `Metadata.flag` does."""
        return self.metadata.flag(self.key(name), default)

    def text(self, name: str, default: str) -> str:
        """Read a string, as `Metadata.text` does."""
        return self.metadata.text(self.key(name), default)

    def value(self, name: str) -> Any:
        """Read a key of `KINDS`, within its limits."""
        kind = KINDS[name]
        if kind.type is None:
            return self.metadata.flag(self.key(name), False)
        if kind.type is int:
            return self.integer(name, int(kind.low), int(kind.high))
        return self.number(name, kind.low, kind.high)

    def by_layer(self, name: str, kind: type, num_layers: int) -> list[Any] | None:
        """Read a list with an item per layer; None when the key is absent or not a list."""
        if not isinstance(self.metadata.values.get(self.key(name)), list):
            return None
        return self.metadata.items(self.key(name), kind, num_layers)

    def fail(self, problem: str) -> CheckpointError:
        """Return the error for a file that cannot be translated."""
        return CheckpointError(f"{self.path}: {problem} Use the model's safetensors checkpoint.")
