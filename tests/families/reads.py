"""Which keys of its configuration a model's code reads.

Owns: the watching of a configuration. Never does: say what a key means. Called by: the command line, the facts.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedConfig

from tests.families.architectures import tiny_config
from tests.families.oracle import build, logits_of

READERS = ("/modeling_", "/masking_utils.py", "/activations.py", "/integrations/")
UNINTERESTING = {
    "_attn_implementation", "_attn_implementation_internal", "_experts_implementation",
    "_experts_implementation_internal", "_pre_quantization_dtype", "architectures", "attention_dropout",
    "base_model_tp_plan", "dtype", "get_text_config", "initializer_range", "name_or_path", "output_attentions",
    "output_hidden_states", "pruned_heads", "quantization_config", "return_dict", "to_dict", "use_cache",
}  # fmt: skip
"""Read for every model, and without a meaning for its results."""


def keys_read(model_type: str, variant: str = "plain") -> set[str]:
    """Names that modelling code asked of a configuration (or of a part of it) while the model was built and run."""
    known = set(tiny_config(model_type, variant).to_dict())
    with _watched() as read:
        model = build(model_type, variant)
        logits_of(model, [5, 6, 7])
    model_keys = {name for name in read if not name.startswith("_") or name in known}
    return model_keys - UNINTERESTING


@contextmanager
def _watched() -> Iterator[set[str]]:
    """The names that are read while the context lasts."""
    found: set[str] = set()
    usual = PreTrainedConfig.__getattribute__

    def watching(self: PreTrainedConfig, name: str) -> Any:
        reader = sys._getframe(1).f_code.co_filename
        inside = reader.rsplit("/transformers", 1)[-1]
        if any(part in inside for part in READERS) and "modeling_utils" not in inside and "modeling_auto" not in inside:
            found.add(name)
        return usual(self, name)

    PreTrainedConfig.__getattribute__ = watching  # type: ignore[method-assign]
    try:
        yield found
    finally:
        PreTrainedConfig.__getattribute__ = usual  # type: ignore[method-assign]
