"""Whether a model is run for its hidden states, and what becomes of them: vectors, or classes.

Owns: the choice of the runner, and the order of those who may say how a model pools: the user, the checkpoint's files, what is
usual. Never does: read weights, compute. Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from core.api.decoder_spec import DecoderSpec
from core.api.errors import UserError
from core.api.module_spec import ModelSpec
from core.api.pooling import PoolingConfig, PoolingKind, Squash
from core.config.checkpoint import Checkpoint
from core.config.rerankers import known_reranker
from core.config.rules import is_count
from core.config.sentence_files import KINDS, MODULES, SentenceFiles, sentence_files, squash_named
from core.config.settings import Settings, underscored
from core.config.token_classes import TokenClasses, told_classes
from core.models.families import without_head
from core.models.families.class_heads import ending_of, labels_of

PROBLEM_TYPES: Mapping[str, Squash] = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}
"""What a configuration says of its classes, and what is done to their numbers; `softmax` of one class is `sigmoid`."""
WAY_TO_CLASSES = (
    "expected an architecture that ends with ForSequenceClassification or ForTokenClassification, or classifier_from_token in "
    "--hf-overrides"
)


def find_pooling(settings: Settings, checkpoint: Checkpoint, spec: ModelSpec) -> PoolingConfig | None:
    """How the model pools; None: it generates text. Raises UserError.

    checkpoint: as it was located.
    """
    ref = checkpoint.manifest.ref
    encodes = isinstance(spec, DecoderSpec) and not spec.causal_lm
    classifies = ending_of(checkpoint.manifest.config) != ""
    if _runner(settings, Path(checkpoint.path), encodes=encodes, classifies=classifies) != "pooling":
        if encodes or classifies:
            what = f"an encoder ({spec.family})" if encodes else "a model with a head for classes"
            raise UserError(
                f"model '{ref}' is {what}, which generates no text: it serves --runner pooling. Choose a model with a head "
                "for the next token, or leave --runner out."
            )
        return None
    convert = settings["convert"]
    if convert == "none" and not encodes and not classifies:
        raise UserError(f"--runner pooling --convert none: '{ref}' is made for text; use --convert embed.")
    files = sentence_files(Path(checkpoint.path))
    known = known_reranker(checkpoint.path, checkpoint.manifest.config)
    tokens = None if convert == "embed" else _token_classes(settings, checkpoint, files)
    if tokens is not None:
        _check_head(checkpoint, spec)
        config = _token_config(checkpoint, spec, files, tokens)
    elif convert != "embed" and classifies and files.kind is None:
        config = _class_config(settings, checkpoint, spec, files)
    elif convert == "classify":
        raise UserError(
            f"--convert classify: '{ref}' has no head for classes; {WAY_TO_CLASSES}. For vectors: --convert embed."
        )
    else:
        config = _vector_config(settings, checkpoint, files, spec, encodes=encodes)
    if config.classifies:
        template = "" if known is None else known.template
        config = msgspec.structs.replace(config, pair_template=template, joins_pairs=config.head == "tokens")
        return _activated(settings, config)
    return config


def _runner(settings: Settings, directory: Path, *, encodes: bool, classifies: bool) -> str:
    """The runner, settled."""
    runner: str = settings["runner"]
    asks = settings.mapping("pooler_config") or settings["convert"] in ("embed", "classify")
    if runner != "auto":
        return runner
    runner = "pooling"
    if encodes:
        why = "the model is an encoder"
    elif (directory / MODULES).is_file():
        why = f"the checkpoint has {MODULES} of sentence-transformers"
    elif classifies:
        why = "the model has a head for classes"
    elif asks:
        why = "--convert or --pooler-config asks for it"
    else:
        runner = "generate"
        why = "the model has a head for the next token"
    settings.derive("runner", runner, why)
    return runner


def _token_classes(settings: Settings, checkpoint: Checkpoint, files: SentenceFiles) -> TokenClasses | None:
    """Classes that are tokens; None: the model has none, or a head of its own."""
    if files.score_tokens:
        return TokenClasses(files.score_tokens, len(files.score_tokens) == 2, ("score",))
    hf_config = checkpoint.manifest.config
    known = known_reranker(checkpoint.path, hf_config)
    has_own_head = ending_of(hf_config) != "" and "classifier_from_token" not in hf_config
    if has_own_head or files.kind is not None:
        return None
    return told_classes(settings, checkpoint, known)


def _check_head(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Raises UserError where there is no head for the next token."""
    manifest = checkpoint.manifest
    if not isinstance(spec, DecoderSpec) or not without_head(spec, manifest).causal_lm:
        raise UserError(
            f"model '{manifest.ref}' has no head for the next token that the engine's own layers run, so its classes cannot "
            "be tokens."
        )


def _token_config(checkpoint: Checkpoint, spec: ModelSpec, files: SentenceFiles, tokens: TokenClasses) -> PoolingConfig:
    """Classes of the head for the next token."""
    for token in tokens.token_ids:
        if token >= spec.vocab_size:
            raise UserError(
                f"model '{checkpoint.manifest.ref}': its score is of token {token}, beyond its {spec.vocab_size}."
            )
    squash = files.squash
    if squash is None:
        squash = _usual_squash(checkpoint.manifest.config, len(tokens.labels))
    return PoolingConfig(
        kind="last",
        normalize=False,
        size=len(tokens.labels),
        max_tokens=files.max_tokens,
        head="tokens",
        labels=tokens.labels,
        squash=squash,
        token_ids=tokens.token_ids,
        contrast=tokens.contrast,
        source="the head for the next token",
    )


def _class_config(settings: Settings, checkpoint: Checkpoint, spec: ModelSpec, files: SentenceFiles) -> PoolingConfig:
    """Classes of the checkpoint's own head."""
    hf_config = checkpoint.manifest.config
    if not isinstance(spec, DecoderSpec) or spec.pooling_head is None:
        raise UserError(
            f"model '{checkpoint.manifest.ref}': its head for classes is served by the engine's own layers alone, which do not "
            "know its family."
        )
    head = spec.pooling_head
    kind = _asked_kind(settings)
    if kind is not None and head.kind == "all":
        raise UserError("--pooler-config.pooling-type: the model classifies tokens, and has no one state to choose.")
    squash = files.squash
    if squash is None:
        squash = _usual_squash(hf_config, head.num_labels)
    return PoolingConfig(
        kind=kind or head.kind,
        normalize=False,
        size=head.num_labels,
        max_tokens=files.max_tokens,
        head="classes",
        labels=labels_of(hf_config),
        squash=squash,
        source="the head of the model's architecture",
    )


def _usual_squash(hf_config: Mapping[str, Any], num_labels: int) -> Squash:
    """As the configuration says, in any of its ways. Raises UserError."""
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


def _activated(settings: Settings, config: PoolingConfig) -> PoolingConfig:
    """With what the user says of the activation."""
    asked = _asked_activation(settings)
    return msgspec.structs.replace(config, squash="none") if asked is False else config


def _vector_config(
    settings: Settings, checkpoint: Checkpoint, files: SentenceFiles, spec: ModelSpec, *, encodes: bool
) -> PoolingConfig:
    """Vectors. What the user says goes before what the files say, and that before what is usual."""
    ref = Path(checkpoint.path)
    kind = files.kind
    source = f"{MODULES} of {ref.name}"
    asked = _asked_kind(settings)
    if asked is not None:
        kind = asked
        source = "--pooler-config"
    normalize = files.normalize
    if kind is None:
        kind = "cls" if encodes else "last"
        normalize = True
        source = f"usual for {'encoders' if encodes else 'decoders'}: the checkpoint has no {MODULES}"
    activation = _asked_activation(settings)
    size = spec.hidden_size
    for module in files.dense:
        outputs, inputs = module.shape
        if inputs != size:
            raise UserError(f"{module.directory}: its Dense module takes {inputs} numbers, but is given {size}.")
        size = outputs
    return PoolingConfig(
        kind=kind,
        normalize=normalize if activation is None else activation,
        size=size,
        max_tokens=files.max_tokens,
        dimensions=_dimensions(checkpoint.manifest.config),
        head="dense" if files.dense else "",
        dense=tuple(files.dense),
        prompts=files.prompts,
        default_prompt=files.default_prompt,
        source=source,
    )


def _asked_kind(settings: Settings) -> PoolingKind | None:
    """The pooling that the user asks for. Raises UserError for two of them."""
    keys = underscored(settings.mapping("pooler_config"))
    names = {str(keys[name]).lower() for name in ("pooling_type", "seq_pooling_type") if keys.get(name)}
    if len(names) > 1:
        raise UserError("--pooler-config: pooling_type and seq_pooling_type differ; leave one of them out.")
    return KINDS[names.pop()] if names else None


def _asked_activation(settings: Settings) -> bool | None:
    """Whether the user asks for vectors of length 1, or probabilities; None: they say nothing of it."""
    keys = underscored(settings.mapping("pooler_config"))
    asked: bool | None = None
    for name in ("normalize", "use_activation"):
        if keys.get(name) is not None:
            asked = bool(keys[name])
    return asked


def _dimensions(hf_config: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes for which the model was trained, where its configuration lists them."""
    listed = hf_config.get("matryoshka_dimensions")
    if not isinstance(listed, list):
        return ()
    return tuple(size for size in listed if is_count(size))
