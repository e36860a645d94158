"""What a type of projector is, as data.

Owns: the fields of a row. Never does: read a file. Called by: the rows, and the code that applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core_loaders.gguf.projectors.tower import TowerSource

Settings = dict[str, Any]
CONFIG_KEYS: Mapping[str, str] = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
"""Metadata key after `clip.vision.` → key of the tower's configuration in transformers."""


@dataclass(frozen=True, slots=True)
class Projector:
    """A type of projector, and the model of transformers that its tower belongs to.

    model_type, hf_class: of the whole model.
    texts:     model types of text models that it serves; empty: all of them.
    text_type: model type that the text model has inside the whole one; empty: its own.
    tower:     configuration of the tower that the format implies.
    keys:      see `CONFIG_KEYS`, which it replaces.
    modules:   module of the file → module of transformers; `*` is a layer's number.
    whole:     the same for tensors that are not the weight or bias of a module.
    joined:    tensor of transformers → tensors of the file that are its parts.
    optional:  modules of the file that a complete tower may lack.
    absent:    modules of transformers that its towers have and no picture's rows depend on, which the file may lack.
    neutral:   tensors that are not read, with the reason.
    output:    tensor of the file that has the text model's width, and which of its dimensions it is.
    paired:    whether rows of queries and keys are stored as rotary pairs (2i, 2i + 1).
    norm_offset: tensors of the file that hold norm weights plus one.
    tokens:    name that transformers' tokenizer has for a special token → its spellings, the first one there counts.
    row_token: the name of the one whose embeddings a picture's rows replace.
    settle:    adds the rest of the tower's configuration, and the keys of the whole model beside it.
    processor: returns the contents of transformers' `processor_config.json`.
    """

    model_type: str
    hf_class: str
    modules: Mapping[str, str]
    output: tuple[str, int]
    tokens: Mapping[str, tuple[str, ...]]
    row_token: str
    settle: Callable[[TowerSource, Settings, Settings], None]
    processor: Callable[[TowerSource, Settings], Settings]
    texts: tuple[str, ...] = ()
    text_type: str = ""
    tower: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=lambda: CONFIG_KEYS)
    whole: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()
    neutral: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    norm_offset: frozenset[str] = frozenset()
