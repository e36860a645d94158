"""GGUF architectures as data: how each differs from the common names and keys.

Owns: the fields of a row. Never does: read a file; guess a name that the tables lack.
Called by: the rows, `translate` and `loader`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from core_loaders.gguf.names import Names

if TYPE_CHECKING:
    from core_loaders.gguf.source import Source

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture of GGUF files differs from the common names and keys.

    model_type, hf_class: of the configuration that the metadata become.
    keys: metadata key after the architecture's name → configuration key, for keys that this architecture may have; see
        `keys.KINDS` for what their values may be.
    constants: configuration that the format implies and does not store.
    present: configuration key → tensors of a layer whose presence makes it true; in all layers, or in none.
    names: tensors whose canonical names are not the common ones, see `names.canonical_name`; or a function that says
        them.
    paired: rows of queries and keys are stored in the order of rotary pairs (2i, 2i + 1), which the row does not
        expect.
    grouped: queries, keys and values are one matrix, stored part after part, which the row expects group by group.
    norm_offset: the file holds norm weights with this value added to the canonical ones.
    rotary: the rotated part: each `whole` head, it or a `part` of it, the part of `latent` attention that its own key
        says, or nothing (`none`).
    attends: whether layers have heads; without them, the common keys about attention are not read.
    adjust: changes the configuration where data does not do.
    neutral: keys that change nothing for this architecture, and why.
    """

    model_type: str
    hf_class: str
    keys: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    present: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Names | Callable[[Source], Names] = field(default_factory=dict)
    paired: bool = False
    grouped: bool = False
    norm_offset: float = 0.0
    rotary: Literal["whole", "part", "latent", "none"] = "whole"
    attends: bool = True
    adjust: Callable[[Source, Config], None] | None = None
    neutral: Mapping[str, str] = field(default_factory=dict)

    def names_in(self, source: Source) -> Names:
        """The own names of tensors in one file."""
        return self.names(source) if callable(self.names) else self.names
