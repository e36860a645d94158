"""The layout of EAGLE's drafts (arXiv 2401.15077, 2406.16858), as published by its authors and in the speculators
format.

Owns: their tensor names and the reading of their configurations. Never does: compute, import torch. Called by: the
manifest.
"""

from __future__ import annotations

from typing import Final

from core.plugin.hookspecs import DraftContext
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftInput, DraftSpec
from core_speculative import drafts

NAMES: Final = (
    ("fc.*", "input.joined.*"),
    ("fusion_fc.*", "input.joined.*"),
    ("embedding_layernorm.*", "input.embed_norm.*"),
    ("layers.*", "model.layers.*"),
    ("transformer.*", "model.layers.0.*"),
    ("pre_lm_head_layernorm.*", "model.norm.*"),
)
"""Published names → canonical names, for the authors' format and the speculators format."""


def eagle_spec(context: DraftContext) -> DraftSpec:
    """Return the draft of a configuration. Raises UserError where it does not fit the target."""
    target = drafts.target_decoder(context)
    decoder = drafts.drafting_decoder(context)
    drafts.check_hidden_size(context.hf_config, target, decoder.hidden_size)
    drafts.check_vocabulary(decoder.vocab_size, target)
    tensors = context.tensors
    normed = bool(context.hf_config.get("layernorms", False))
    if not normed:
        decoder = drafts.without_first_norm(decoder)
    shares_embedding, shares_head = drafts.ends(target, decoder, tensors, trained=False)
    joined = DraftInput(
        kind="joined",
        bias=any(name in tensors for name in ("fc.bias", "fusion_fc.bias")),
        embed_norm=decoder.norm if normed else None,
    )
    return DraftSpec(
        decoder=decoder,
        input=joined,
        taps=(BEHIND_NORM,),
        shares_embedding=shares_embedding,
        shares_head=shares_head,
        head_norm=normed,
        names=(*NAMES, ("embed_tokens.*", "" if shares_embedding else "model.embed_tokens.*")),
    )
