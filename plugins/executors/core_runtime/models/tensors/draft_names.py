"""Canonical names of the tensors in a draft's checkpoint. Torch-free.

Owns: the translation of the patterns of a `DraftSpec` to rules for names. Never does: know a published layout
(proposers do).
Called by: the configuration (names and shapes), the draft's instance (reading).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from core_runtime.models.families.table import family_rules
from core_runtime.models.tensors.weight_map import WeightMap
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import DraftSpec


def draft_weight_map(
    manifest: CheckpointManifest, draft: DraftSpec, spec: DecoderSpec, *, in_target: bool = False
) -> WeightMap:
    """Return the map from a checkpoint to the tensors of a draft.

    spec: shape from `draft_decoder`.
    in_target: whether the checkpoint is the target's. The target's own tensors are then ignored.
    """
    num_experts, _ = spec.router_widths()
    shapes = spec.tensor_shapes()
    rules: list[WeightRule] = []
    if manifest.tensors.keys() != shapes.keys():  # dummy weights have canonical names
        rules += name_rules(draft.names, in_target=in_target)
        laid_out = family_rules(spec, manifest.config)
        # tensors that the family's model leaves unread may be the draft itself
        rules += [rule for rule in laid_out if not isinstance(rule, Ignored)]
    return WeightMap(manifest, rules, num_experts, shapes)


def name_rules(names: Sequence[tuple[str, str]], *, in_target: bool = False) -> list[WeightRule]:
    """Translate patterns with `*` and canonical names to rules. in_target: tensors without a pattern are not read."""
    rules: list[WeightRule] = []
    known: list[str] = []
    for published, canonical in names:
        parts = [re.escape(part) for part in published.split("*")]
        pattern = "(.*)".join(parts)
        known.append("(?:.*)".join(parts))
        if canonical:
            rules.append(Rename(f"^{pattern}$", _template(canonical)))
        else:
            rules.append(Ignored(pattern, "the draft does not need it"))
    if in_target:
        others = f"(?!(?:{'|'.join(known)})$).*"
        rules.append(Ignored(others, "the target's own"))
    return rules


def _template(canonical: str) -> str:
    """Return a template for `re.sub` from a canonical name: its n-th `*` becomes the n-th group."""
    first, *others = canonical.split("*")
    template = first
    for number, part in enumerate(others, start=1):
        template += rf"\g<{number}>{part}"
    return template
