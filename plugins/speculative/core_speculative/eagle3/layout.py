"""The layout of drafts of EAGLE-3 (arXiv 2503.01840) and P-EAGLE, as published by their authors and in the speculators
format.

Owns: their tensor names and the reading of their configurations. Never does: compute, import torch. Called by: the
manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftInput, DraftSpec
from core_speculative import drafts
from core_speculative.draft_model.shape import mask_token

NAMES: Final = (
    ("fc.*", "taps.*"),
    ("input_norm.*", "tap_norm.0.*"),
    ("fc_norm.*", "tap_norm.*"),
    ("midlayer.input_layernorm.*", "input.embed_norm.*"),
    ("midlayer.hidden_norm.*", "input.hidden_norm.*"),
    ("midlayer.*", "model.layers.0.*"),
    ("layers.0.input_layernorm.*", "input.embed_norm.*"),
    ("layers.0.hidden_norm.*", "input.hidden_norm.*"),
    ("layers.*", "model.layers.*"),
    ("norm.*", "model.norm.*"),
    ("t2d", ""),
    ("verifier_norm.*", ""),
    ("verifier_lm_head.*", ""),
)
"""Published names → canonical names, for the authors' format and the speculators format. Names without one are not
read.
"""
LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"


def eagle3_spec(context: DraftContext) -> DraftSpec:
    """Return the draft of a configuration. Raises UserError where it does not fit the target."""
    hf_config = context.hf_config
    target = drafts.target_decoder(context)
    decoder = drafts.drafting_decoder(context)
    drafts.check_hidden_size(hf_config, target, decoder.hidden_size)
    drafts.check_vocabulary(decoder.vocab_size, target)
    tensors = context.tensors
    embeds_anew = bool(drafts.setting(hf_config, "embed_requires_grad", False))
    shares_embedding, shares_head = drafts.ends(target, decoder, tensors, trained=embeds_anew)
    reads_layers = bool(drafts.setting(hf_config, "use_aux_hidden_state", True))
    taps = taps_of(hf_config, target) if reads_layers else (BEHIND_NORM,)
    trained = "mask_hidden" in tensors
    asked = None if context.arguments is None else context.arguments.parallel_drafting
    at_once = trained if asked is None else asked
    if at_once and not trained:
        raise UserError(
            "--speculative-config.parallel_drafting: the draft has no hidden state for tokens that are not known yet "
            "('mask_hidden'); leave it out."
        )
    draft_vocab_size = _draft_vocab_size(hf_config, target)
    shares_tokens = draft_vocab_size is None
    return DraftSpec(
        decoder=decoder,
        input=_input(hf_config, decoder, len(taps), masked=trained),
        taps=taps,
        tap_projection=reads_layers,
        carries="normed" if drafts.setting(hf_config, "norm_output", False) else "residual",
        shares_embedding=shares_embedding,
        shares_head=shares_head,
        draft_vocab_size=draft_vocab_size,
        parallel_token_id=mask_token(hf_config, target.vocab_size) if at_once else None,
        names=(
            *NAMES,
            ("d2t", "" if shares_tokens else "draft_tokens"),
            ("embed_tokens.*", "" if shares_embedding else "model.embed_tokens.*"),
        ),
    )


def taps_of(hf_config: Mapping[str, Any], target: DecoderSpec) -> tuple[int, ...]:
    """Return the blocks after which the draft reads hidden states. Published numbers count the inputs of layers.

    Raises UserError for a layer that the target does not have.
    """
    count = len(target.blocks)
    said = drafts.setting(hf_config, LAYER_IDS)
    ids = (2, count // 2, count - 3) if said is None else said
    is_list = isinstance(ids, (list, tuple))
    if not is_list or not ids or not all(isinstance(one, int) and 1 <= one <= count for one in ids):
        raise UserError(
            f"--speculative-config.model: the draft reads in front of the model's layers {ids} ({LAYER_IDS}); expected numbers "
            f"from 1 to {count}, the model's layers."
        )
    return tuple(one - 1 for one in ids)


def _input(hf_config: Mapping[str, Any], decoder: DecoderSpec, num_taps: int, *, masked: bool) -> DraftInput:
    """Return the draft's input layer. Drafts of the speculators format normalize the residual stream unless they say
    otherwise.
    """
    tap_norms = 0
    if drafts.setting(hf_config, "norm_before_fc", False):
        tap_norms = 1
    if drafts.setting(hf_config, "fc_norm", False):
        tap_norms = num_taps
    is_speculators = hf_config.get("speculators_model_type") == "eagle3"  # not P-EAGLE's
    return DraftInput(
        kind="paired",
        embed_norm=decoder.norm,
        hidden_norm=decoder.norm,
        norms_stream=bool(drafts.setting(hf_config, "norm_before_residual", is_speculators)),
        tap_norms=tap_norms,
        tap_norm=decoder.norm,
        masked=masked,
    )


def _draft_vocab_size(hf_config: Mapping[str, Any], target: DecoderSpec) -> int | None:
    """Return the number of tokens in the draft's vocabulary, None for the target's. Raises UserError for an impossible
    number.
    """
    size = drafts.setting(hf_config, "draft_vocab_size", target.vocab_size)
    if not isinstance(size, int) or not 0 < size <= target.vocab_size:
        raise UserError(
            f"--speculative-config.model: draft_vocab_size is {size!r}; expected 1 to {target.vocab_size}, the model's tokens."
        )
    return None if size == target.vocab_size else size
