"""The shape of a draft that is a whole model.

Owns: the mask token, which stands for drafts that are not known yet. Never does: read tensors. Called by: the manifests
of `draft_model` and `parallel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core_runtime.specs.draft_spec import DraftSpec

MASK_KEYS: Final = ("pard_token", "ptd_token_id", "mask_token_id")
"""Keys of a configuration that name the mask token, in order of precedence."""


def model_draft(context: DraftContext, *, parallel: bool) -> DraftSpec:
    """Return the draft. parallel: all its tokens come from one pass. Raises UserError for a checkpoint that does not
    support this.
    """
    if not context.has_checkpoint:
        raise UserError("--speculative-config.model: missing; give the path or hub name of the draft model.")
    decoder = context.decoder
    if decoder is None:
        raise UserError(f"--speculative-config.model: {context.why_no_decoder}")
    if not parallel:
        return DraftSpec(decoder=decoder)
    mask = mask_token(context.hf_config, decoder.vocab_size)
    return DraftSpec(decoder=decoder, parallel_token_id=mask)


def mask_token(hf_config: Mapping[str, Any], vocab_size: int) -> int:
    """Return the mask token, which stands for drafts that are not known yet. Raises UserError where the checkpoint
    names none.
    """
    mask = next((hf_config[key] for key in MASK_KEYS if key in hf_config), None)
    if isinstance(mask, int) and not isinstance(mask, bool) and 0 <= mask < vocab_size:
        return mask
    keys = " or ".join(f"'{key}'" for key in MASK_KEYS)
    found = "has none" if mask is None else f"says {mask!r}"
    raise UserError(
        f"--speculative-config.model: a model that drafts in parallel names its mask token as {keys}, of "
        f"{vocab_size} tokens; this one {found}. Choose another model, or leave parallel drafting out."
    )
