"""How the configurations of published drafts are read, whatever their layout.

Owns: finding the configuration of the blocks, and checks that a draft fits its target. Never does: import torch.
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
"""Keys under which the configuration of the blocks lies: of the speculators format, and of vLLM's."""
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
"""Keys of a draft that say nothing of its blocks, or another thing than for a model."""


def blocks_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a draft's blocks, as that of a model: what lies deeper counts, and then what lies beside it."""
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
    """A value of the draft: of `eagle_config`, of the whole, or of the blocks' own configuration, in this order."""
    places = [hf_config.get("eagle_config"), hf_config, *(hf_config.get(key) for key in NESTED)]
    for place in places:
        if isinstance(place, Mapping) and place.get(name) is not None:
            return place[name]
    return usual


def drafting_decoder(context: DraftContext) -> DecoderSpec:
    """The blocks of a draft, as the table of families reads them. Raises UserError where it does not know them."""
    if not context.has_checkpoint:
        raise UserError(
            "--speculative-config: 'model' is missing; give the directory or the name of the draft's checkpoint."
        )
    return decoder_spec(blocks_config(context.hf_config))


def target_decoder(context: DraftContext) -> DecoderSpec:
    """The target, where its hidden states can be read. Raises UserError where they cannot."""
    if isinstance(context.target, DecoderSpec):
        return context.target
    raise UserError(
        "--speculative-config: this method reads hidden states of the model's layers, which layers of transformers do not "
        "give; choose another method, or leave --model-impl transformers out."
    )


def check_hidden_size(hf_config: Mapping[str, Any], target: DecoderSpec, own: int) -> None:
    """Raises UserError where a draft was made for hidden states of another size. own: the draft's hidden size."""
    wanted = setting(hf_config, "target_hidden_size", own)
    if wanted == target.hidden_size:
        return
    raise UserError(
        f"--speculative-config.model: the draft reads hidden states of {wanted} numbers, the model's have "
        f"{target.hidden_size}; expected a draft that was trained for this model."
    )


def check_vocabulary(size: int, target: DecoderSpec) -> None:
    """Raises UserError where a draft embeds other tokens than its target."""
    if size == target.vocab_size:
        return
    raise UserError(
        f"--speculative-config.model: the draft knows {size} tokens, the model {target.vocab_size}; expected a draft of the "
        "model's own vocabulary."
    )


def is_there(tensors: Collection[str], name: str) -> bool:
    """Whether a checkpoint has a module of that name."""
    return any(tensor == name or tensor.startswith(f"{name}.") for tensor in tensors)


def ends(target: DecoderSpec, decoder: DecoderSpec, tensors: Collection[str], *, trained: bool) -> tuple[bool, bool]:
    """Whether a draft takes the target's embedding, and its head.

    trained: whether the draft's embedding was trained, so that it is not the target's even where sizes are equal.
    """
    same_size = decoder.hidden_size == target.hidden_size
    own_embedding = is_there(tensors, "embed_tokens") and (trained or not same_size)
    own_head = is_there(tensors, "lm_head")
    return not own_embedding, not own_head


def without_first_norm(decoder: DecoderSpec) -> DecoderSpec:
    """The same without the norm in front of the first block's attention."""
    first = msgspec.structs.replace(decoder.blocks[0], input_norm=False)
    return msgspec.structs.replace(decoder, blocks=(first, *decoder.blocks[1:]))


def _model_type(config: Mapping[str, Any]) -> str:
    """The family of the blocks; most drafts say llama, or nothing."""
    said = str(config.get("model_type") or "llama")
    return "llama" if said in ("eagle", "eagle3", "speculators", "speculator_model") else said
