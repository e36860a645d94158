"""The layout of EAGLE's drafts (arXiv 2401.15077, 2406.16858), as published by its authors, in the speculators format, and
by the makers of Llama 4, DeepSeek, MiniCPM and Mistral Large 3 for their models.

Owns: their tensor names and the reading of their configurations. Never does: compute, import torch. Called by: the
manifest.

Layouts differ in their norms: a draft has those of which its checkpoint has weights. A draft with a norm before its head
goes on with the normed hidden state, but in the speculators format.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core_runtime.specs.block_spec import NormSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftInput, DraftSpec
from core_speculative import drafts

EMBED_NORMS: Final = ("enorm", "input_norm1", "embedding_layernorm")
HIDDEN_NORMS: Final = ("hnorm", "input_norm2")
FIRST_NORMS: Final = ("layers.0.input_layernorm", "eagle_layers.0.input_layernorm")
NAMES: Final = (
    ("fc", "input.joined"),
    ("fusion_fc", "input.joined"),
    *((name, "input.embed_norm") for name in EMBED_NORMS),
    *((name, "input.hidden_norm") for name in HIDDEN_NORMS),
    ("layers", "model.layers"),
    ("eagle_layers", "model.layers"),
    ("transformer", "model.layers.0"),
    ("pre_lm_head_layernorm", "model.norm"),
)
"""Published modules, with or without `model.` before them, and their canonical names."""


def eagle_spec(context: DraftContext) -> DraftSpec:
    """Return the draft of a configuration. Raises UserError where it does not fit the target."""
    target = drafts.target_decoder(context)
    hf_config, tensors = context.hf_config, context.tensors
    decoder = drafts.drafting_decoder(context, _dense_layers(hf_config, tensors))
    drafts.check_hidden_size(hf_config, target, decoder.hidden_size)
    drafts.check_vocabulary(decoder.vocab_size, target)
    of_speculators = bool(hf_config.get("layernorms", False))
    if not of_speculators and not _has(tensors, FIRST_NORMS):
        decoder = drafts.without_first_norm(decoder)
    embed_norm = decoder.norm if _has(tensors, EMBED_NORMS) or of_speculators else None
    hidden_norm = decoder.norm if _has(tensors, HIDDEN_NORMS) else None
    ends_normed = _has(tensors, ("norm",))
    if decoder.family == MINICPM:
        decoder, hidden_norm, ends_normed = _minicpm(hf_config, decoder, hidden_norm)
    shares_embedding, shares_head = drafts.ends(target, decoder, tensors, trained=False)
    if not shares_head:
        _check_head(hf_config, decoder.vocab_size)
    joined = DraftInput(
        kind="joined",
        bias=any(_has_tensor(tensors, name) for name in ("fc.bias", "fusion_fc.bias")),
        embed_norm=embed_norm,
        hidden_norm=hidden_norm,
    )
    own = (
        ("embed_tokens", "" if shares_embedding else "model.embed_tokens"),
        ("norm", "model.norm" if ends_normed else ""),
    )
    return DraftSpec(
        decoder=decoder,
        input=joined,
        taps=(BEHIND_NORM,),
        carries="normed" if ends_normed else "residual",
        shares_embedding=shares_embedding,
        shares_head=shares_head,
        head_norm=of_speculators or ends_normed,
        names=tuple(_patterns((*NAMES, *own))),
    )


MINICPM: Final = "minicpm"


def _minicpm(
    hf_config: Mapping[str, Any], decoder: DecoderSpec, hidden_norm: NormSpec | None
) -> tuple[DecoderSpec, NormSpec | None, bool]:
    """Return decoder, norm of hidden states, and whether a norm precedes the head, for a draft of MiniCPM.

    Its branches shrink with the root of the model's depth (`mup_denominator`), not of its own. The hidden states that it
    reads are divided by the width relative to a small model's, which equals a larger epsilon. It has a norm that it does
    not use.
    """
    depth = drafts.setting(hf_config, "scale_depth", 1.0)
    layers = drafts.setting(hf_config, "mup_denominator", len(decoder.blocks))
    if isinstance(layers, bool) or not isinstance(layers, int | float) or not layers > 0:
        raise UserError(
            f"--speculative-config.model: mup_denominator is {layers!r} in the draft's configuration; expected the number of "
            "the model's layers."
        )
    shrunk = msgspec.structs.replace(decoder, residual_scale=depth / math.sqrt(layers))
    if hidden_norm is not None:
        hidden_norm = msgspec.structs.replace(hidden_norm, eps=hidden_norm.eps / decoder.logit_scale**2)
    return shrunk, hidden_norm, False


def _dense_layers(hf_config: Mapping[str, Any], tensors: Collection[str]) -> dict[str, int]:
    """Return `first_k_dense_replace` by what the checkpoint has, for a configuration with that key.

    Some drafts count their layers behind the model's, others from 0.
    """
    if drafts.setting(hf_config, "first_k_dense_replace") is None:
        return {}
    count = 0
    while _has(tensors, (f"layers.{count}.mlp.gate_proj",)):
        count += 1
    return {"first_k_dense_replace": count}


def _check_head(hf_config: Mapping[str, Any], vocab_size: int) -> None:
    """Raise UserError for a head with fewer tokens, which EAGLE's layout gives no ids."""
    size = drafts.setting(hf_config, "draft_vocab_size", vocab_size)
    if size != vocab_size:
        raise UserError(
            f"--speculative-config.model: draft_vocab_size is {size!r}; expected {vocab_size}, the model's tokens: drafts "
            "with a vocabulary of their own are of the method eagle3."
        )


def _has(tensors: Collection[str], modules: tuple[str, ...]) -> bool:
    """Whether a checkpoint has any of these modules, with or without `model.` before its name."""
    return any(drafts.is_there(tensors, name) or drafts.is_there(tensors, f"model.{name}") for name in modules)


def _has_tensor(tensors: Collection[str], name: str) -> bool:
    return name in tensors or f"model.{name}" in tensors


def _patterns(names: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Return the patterns of modules and of modules with `model.` before them."""
    found = []
    for module, canonical in names:
        to = f"{canonical}.*" if canonical else ""
        found += [(f"{module}.*", to), (f"model.{module}.*", to)]
    return found
