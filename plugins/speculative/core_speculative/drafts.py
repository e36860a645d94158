"""Reading of the configurations of published drafts, in every layout.

Owns: the location of the blocks' configuration, and checks that a draft fits its target. Never does: import torch.
Called by: the manifests of proposers with a checkpoint of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core_runtime.models.families import decoder_spec
from core_runtime.specs.decoder_spec import DecoderSpec

NESTED: Final = ("transformer_layer_config", "model")
"""Keys under which the configuration of the blocks lies: that of the speculators format, and vLLM's."""
OF_THE_DRAFT: Final = (
    "bias",
    "eagle_config",
    "model_type",
    "architectures",
    "auto_map",
    "method",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
)
"""Keys of a draft that do not describe its blocks, or have another meaning than in a model."""


def blocks_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a draft's blocks in the form of a model's. Nested keys take precedence over keys next
    to them.
    """
    inner: Mapping[str, Any] = {}
    for key in NESTED:
        found = hf_config.get(key)
        if isinstance(found, Mapping):
            inner = found
            break
    outer = {key: value for key, value in hf_config.items() if key not in (*OF_THE_DRAFT, *NESTED)}
    config = {**outer, **{key: value for key, value in inner.items() if key not in OF_THE_DRAFT}}
    config["model_type"] = _model_type(inner or hf_config)
    return config


def setting(hf_config: Mapping[str, Any], name: str, usual: Any = None) -> Any:
    """Return a value of the draft: from `eagle_config`, the whole configuration, or that of the blocks, in this
    order.
    """
    places = [hf_config.get("eagle_config"), hf_config, *(hf_config.get(key) for key in NESTED)]
    for place in places:
        if isinstance(place, Mapping) and place.get(name) is not None:
            return place[name]
    return usual


def drafting_decoder(context: DraftContext, changes: Mapping[str, Any] | None = None) -> DecoderSpec:
    """Return the blocks of a draft, as the table of families reads them. Raises UserError for an unknown family.

    changes: values that replace those of the configuration.
    """
    if not context.has_checkpoint:
        raise UserError(
            "--speculative-config: 'model' is missing; give the directory or the name of the draft's checkpoint."
        )
    return decoder_spec({**blocks_config(context.hf_config), **(changes or {})})


def target_decoder(context: DraftContext) -> DecoderSpec:
    """Return the target. Raises UserError for a target whose hidden states cannot be read."""
    if isinstance(context.target, DecoderSpec):
        return context.target
    raise UserError(
        "--speculative-config: this method reads hidden states of the model's layers, which layers of transformers do not "
        "give; choose another method, or leave --model-impl transformers out."
    )


def check_hidden_size(hf_config: Mapping[str, Any], target: DecoderSpec, own: int) -> None:
    """Raise UserError for a draft that was made for hidden states of another size. own: the draft's hidden size."""
    wanted = setting(hf_config, "target_hidden_size", own)
    if wanted == target.hidden_size:
        return
    raise UserError(
        f"--speculative-config.model: the draft reads hidden states of {wanted} numbers, the model's have "
        f"{target.hidden_size}; expected a draft that was trained for this model."
    )


def check_vocabulary(size: int, target: DecoderSpec) -> None:
    """Raise UserError for a draft with another vocabulary than its target."""
    if size == target.vocab_size:
        return
    raise UserError(
        f"--speculative-config.model: the draft knows {size} tokens, the model {target.vocab_size}; expected a draft of the "
        "model's own vocabulary."
    )


def is_there(tensors: Collection[str], name: str) -> bool:
    """Whether a checkpoint has a module or tensor of that name."""
    return any(tensor == name or tensor.startswith(f"{name}.") for tensor in tensors)


def ends(target: DecoderSpec, decoder: DecoderSpec, tensors: Collection[str], *, trained: bool) -> tuple[bool, bool]:
    """Return whether a draft uses the target's embedding, and whether it uses the target's head.

    trained: whether the draft's embedding was trained, so that it differs from the target's even if sizes are equal.
    """
    same_size = decoder.hidden_size == target.hidden_size
    has_embedding = is_there(tensors, "embed_tokens") or is_there(tensors, "model.embed_tokens")
    own_embedding = has_embedding and (trained or not same_size)
    own_head = is_there(tensors, "lm_head")
    return not own_embedding, not own_head


def without_first_norm(decoder: DecoderSpec) -> DecoderSpec:
    """Return the decoder without the norm before the first block's attention."""
    first = msgspec.structs.replace(decoder.blocks[0], input_norm=False)
    return msgspec.structs.replace(decoder, blocks=(first, *decoder.blocks[1:]))


def _model_type(config: Mapping[str, Any]) -> str:
    """Return the family of the blocks. Most drafts say llama, or nothing."""
    said = str(config.get("model_type") or "llama")
    return "llama" if said in ("eagle", "eagle3", "speculators", "speculator_model") else said
