"""The keys of `--speculative-config` that name a draft's checkpoint, for every proposer whose draft the core runs.

Owns: those keys, and keys of other engines that have no effect here or cannot be served. Never does: look for a
checkpoint.
Called by: the stage that resolves the draft, the rules, and the table of plugins' arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from core.args.plugin_arguments import convert_struct


class DraftKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a draft's checkpoint that are served."""

    model: Annotated[str | None, msgspec.Meta(description="Path or hub name of the draft's checkpoint.")] = None
    revision: Annotated[str | None, msgspec.Meta(description="Branch, tag or commit of it.")] = None
    quantization: Annotated[
        str | None, msgspec.Meta(description="Its quantization method. Unset: as the checkpoint says.")
    ] = None
    load_format: Annotated[str, msgspec.Meta(description="Its loader.")] = "auto"
    hf_overrides: Annotated[
        dict[str, Any], msgspec.Meta(description="Values that replace those of its configuration.")
    ] = {}
    attention_backend: Annotated[
        str | None, msgspec.Meta(description="Backends of its layers. Unset: as those of the main model are chosen.")
    ] = None
    enforce_eager: Annotated[
        bool | None, msgspec.Meta(description="Record none of its passes. Unset: as the main model.")
    ] = None
    speculative_token_tree: Annotated[
        str | None,
        msgspec.Meta(description="Shape of the drafts, as paths such as '[(0,), (1,), (0, 0)]'. Unset: a chain."),
    ] = None
    max_model_len: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Tokens of the longest sequence that it drafts for. Unset: what both models can."),
    ] = None


SPECULATORS: Mapping[str, str] = {"peagle": "eagle3", "mlp": "mlp_speculator"}
"""Types of speculators with another name here → that name."""
NEUTRAL: Mapping[str, tuple[tuple[Any, ...] | None, str]] = {
    "draft_tensor_parallel_size": (None, "a draft model runs on one rank, as a rule of its own says"),
    "device": (None, "a draft runs on the device of the main model, as a rule of its own says"),
    "tensor_parallel_size": ((1,), "a draft model runs on one rank"),
    "disable_padded_drafter_batch": (None, "batches of drafts are only padded to the size of a recording"),
    "use_local_argmax_reduction": (None, "a draft model runs on one rank"),
    "draft_sample_method": (
        None,
        "drafts are drawn with the noise of the tokens that they guess, whatever the temperature",
    ),
    "use_heterogeneous_vocab": ((False,), "a draft has the vocabulary of its main model"),
    "code_revision": ((None,), "no code comes with a draft"),
    "moe_backend": (("auto",), "kernels are chosen by --kernels"),
    "draft_load_config": ((None, {}), "its key load_format is given as --speculative-config.load_format"),
}
"""Keys of other engines → the values without effect (None: any value), and the reason."""


def speculator_keys(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a checkpoint in the speculators format gives: its method and the number of drafts."""
    config = hf_config.get("speculators_config")
    config = config if isinstance(config, Mapping) else {}
    keys: dict[str, Any] = {}
    kind = hf_config.get("speculators_model_type") or config.get("algorithm")
    if isinstance(kind, str):
        keys["method"] = SPECULATORS.get(kind, kind)
    proposals = config.get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    count = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    if isinstance(count, int) and count >= 1:
        keys["num_speculative_tokens"] = count
    return keys


def is_draft_key(name: str) -> bool:
    """Whether a key belongs to the draft rather than to the plugin."""
    return name in DraftKeys.__struct_fields__ or name in NEUTRAL


def read_draft_keys(values: Mapping[str, Any]) -> tuple[DraftKeys, list[str]]:
    """Return the draft's keys among those of `--speculative-config`, and every problem with them."""
    prefix = "--speculative-config"
    served = {name: value for name, value in values.items() if name in DraftKeys.__struct_fields__}
    problems: list[str] = []
    for name, value in values.items():
        if name not in NEUTRAL:
            continue
        allowed, why = NEUTRAL[name]
        if allowed is not None and value not in allowed:
            problems.append(f"{prefix}.{name} {value!r}: not served, as {why}; leave it out.")
    keys, wrong = convert_struct(DraftKeys, served, prefix)
    return (keys if isinstance(keys, DraftKeys) else DraftKeys()), problems + wrong
