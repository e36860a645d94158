"""Classification models: with a head of their own, or with rows of the language model head.

Owns: the choice between the two, and the activation of their scores. Never does: read weights, decide whether the user
requests classes. Called by: `core_config.pooled.pooling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.errors import UserError
from core.api.pooling import PoolingConfig, Squash
from core_config.pooled.pooler_keys import requested_activation, requested_kind
from core_config.pooled.rerankers import known_reranker
from core_config.pooled.sentence_files import SentenceFiles, squash_named
from core_config.pooled.token_classes import TokenClasses, declared_classes
from core_config.stages.checkpoint import Checkpoint
from core_config.stages.settings import Settings
from core_runtime.models.families import without_head
from core_runtime.models.families.class_heads import ending_of, labels_of
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec

PROBLEM_TYPES: Mapping[str, Squash] = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}
"""Problem types of configurations → activation of the scores. A `softmax` of one class is `sigmoid`."""


def class_config(
    settings: Settings, checkpoint: Checkpoint, spec: ModelSpec, files: SentenceFiles
) -> PoolingConfig | None:
    """Return how the model computes classes; None: it has no head for them. Raises UserError."""
    tokens = _token_classes(settings, checkpoint, files)
    if tokens is not None:
        _check_head(checkpoint, spec)
        config = _of_tokens(checkpoint, spec, tokens)
    elif ending_of(checkpoint.manifest.config) and not files.kinds:
        config = _of_own_head(settings, checkpoint, spec)
    else:
        return None
    known = known_reranker(checkpoint.path, checkpoint.manifest.config)
    template = "" if known is None else known.template
    squash = files.squash or _usual_squash(checkpoint.manifest.config, config.size)
    if requested_activation(settings) is False:
        squash = "none"
    return msgspec.structs.replace(config, pair_template=template, joins_pairs=config.head == "tokens", squash=squash)


def _token_classes(settings: Settings, checkpoint: Checkpoint, files: SentenceFiles) -> TokenClasses | None:
    """Return the tokens that serve as classes; None: the model has none, or a head of its own."""
    if files.score_tokens:
        return TokenClasses(files.score_tokens, len(files.score_tokens) == 2, ("score",))
    hf_config = checkpoint.manifest.config
    known = known_reranker(checkpoint.path, hf_config)
    has_own_head = ending_of(hf_config) != "" and "classifier_from_token" not in hf_config
    if has_own_head or files.kinds:
        return None
    return declared_classes(settings, checkpoint, known)


def _check_head(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Raise UserError where the model has no language model head."""
    manifest = checkpoint.manifest
    if not isinstance(spec, DecoderSpec) or not without_head(spec, manifest).causal_lm:
        raise UserError(
            f"model '{manifest.ref}' has no head for the next token that the engine's own layers run, so its classes cannot "
            "be tokens."
        )


def _of_tokens(checkpoint: Checkpoint, spec: ModelSpec, tokens: TokenClasses) -> PoolingConfig:
    """Return the config of classes computed by rows of the language model head."""
    for token in tokens.token_ids:
        if token >= spec.vocab_size:
            raise UserError(
                f"model '{checkpoint.manifest.ref}': its score is of token {token}, beyond its {spec.vocab_size}."
            )
    return PoolingConfig(
        kinds=("last",),
        normalize=False,
        size=len(tokens.labels),
        head="tokens",
        labels=tokens.labels,
        token_ids=tokens.token_ids,
        contrast=tokens.contrast,
        source="the head for the next token",
    )


def _of_own_head(settings: Settings, checkpoint: Checkpoint, spec: ModelSpec) -> PoolingConfig:
    """Return the config of classes computed by the checkpoint's own head."""
    if not isinstance(spec, DecoderSpec) or spec.pooling_head is None:
        why = "which do not know its family"
        if settings["model_impl"] == "transformers":
            why = "not by modules of transformers (--model-impl transformers); leave that out, if the engine knows the family"
        raise UserError(
            f"model '{checkpoint.manifest.ref}': its head for classes is served by the engine's own layers alone, {why}."
        )
    head = spec.pooling_head
    kind = requested_kind(settings)
    if kind is not None and head.kind == "all":
        raise UserError("--pooler-config.pooling-type: the model classifies tokens, and has no one state to choose.")
    return PoolingConfig(
        kinds=(kind or head.kind,),
        normalize=False,
        size=head.num_labels,
        head="classes",
        labels=labels_of(checkpoint.manifest.config),
        source="the head of the model's architecture",
    )


def _usual_squash(hf_config: Mapping[str, Any], num_labels: int) -> Squash:
    """Return the activation that the configuration names, in any of its ways. Raises UserError."""
    section = hf_config.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    named = named or hf_config.get("sbert_ce_default_activation_function")
    if named:
        return squash_named(named, "config.json")
    problem = hf_config.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise UserError(f"problem_type is {problem!r}; expected one of {', '.join(PROBLEM_TYPES)}.")
    squash = PROBLEM_TYPES.get(str(problem), "softmax")
    return "sigmoid" if squash == "softmax" and num_labels == 1 else squash
