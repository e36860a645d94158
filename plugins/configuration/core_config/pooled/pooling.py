"""The choice between generation and pooling, and the result of pooling: vectors, or classes.

Owns: the choice of the runner, and the precedence of sources for pooling: the user, the checkpoint's files, the usual
method. Never does: read weights, compute. Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import UserError
from core.api.pooling import PoolingConfig, PoolingKind
from core_config.pooled.class_pooling import class_config
from core_config.pooled.pooler_keys import requested_activation, requested_kind, with_keys
from core_config.pooled.sentence_files import MODULES, SentenceFiles, sentence_files
from core_config.rules import is_count
from core_config.stages.checkpoint import Checkpoint
from core_config.stages.settings import Settings
from core_runtime.models.families.class_heads import ending_of
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec

WAY_TO_CLASSES = (
    "expected an architecture that ends with ForSequenceClassification or ForTokenClassification, or classifier_from_token in "
    "--hf-overrides"
)

GRITLM = "GritLM"
"""Architecture whose vectors leave the instruction out (arXiv 2402.09906), with `is_causal` false."""


def find_pooling(settings: Settings, checkpoint: Checkpoint, spec: ModelSpec) -> PoolingConfig | None:
    """Return how the model pools; None: it generates text. Raises UserError.

    checkpoint: checkpoint as it was located.
    """
    encodes = isinstance(spec, DecoderSpec) and not spec.causal_lm
    classifies = ending_of(checkpoint.manifest.config) != ""
    directory = Path(checkpoint.path)
    pools = _runner(settings, checkpoint, encodes=encodes, classifies=classifies) == "pooling"
    if not pools and not encodes and not classifies:
        return None
    ref = checkpoint.manifest.ref
    if not pools:
        what = f"an encoder ({spec.family})" if encodes else "a model with a head for classes"
        raise UserError(
            f"model '{ref}' is {what}, which generates no text: it serves --runner pooling. Choose a model with a head "
            "for the next token, or leave --runner out."
        )
    convert = settings["convert"]
    if convert == "none" and not encodes and not classifies:
        raise UserError(f"--runner pooling --convert none: '{ref}' is made for text; use --convert embed.")
    files = sentence_files(directory)
    config = None if convert == "embed" else class_config(settings, checkpoint, spec, files)
    if config is None and convert == "classify":
        raise UserError(
            f"--convert classify: '{ref}' has no head for classes; {WAY_TO_CLASSES}. For vectors: --convert embed."
        )
    if config is None:
        config = _vector_config(settings, checkpoint, files, spec, encodes=encodes)
    config = msgspec.structs.replace(config, max_tokens=files.max_tokens, lower_case=files.lower_case)
    return with_keys(settings, config)


def _runner(settings: Settings, checkpoint: Checkpoint, *, encodes: bool, classifies: bool) -> str:
    """Return the runner, settled."""
    runner: str = settings["runner"]
    asks = settings.mapping("pooler_config") or settings["convert"] in ("embed", "classify")
    if runner != "auto":
        return runner
    runner = "pooling"
    if encodes:
        why = "the model is an encoder"
    elif (Path(checkpoint.path) / MODULES).is_file():
        why = f"the checkpoint has {MODULES} of sentence-transformers"
    elif checkpoint.manifest.pooling is not None:
        why = f"the file says that its hidden states are pooled ('{checkpoint.manifest.pooling}')"
    elif classifies:
        why = "the model has a head for classes"
    elif asks:
        why = "--convert or --pooler-config asks for it"
    else:
        runner = "generate"
        why = "the model has a head for the next token"
    settings.derive("runner", runner, why)
    return runner


def _vector_config(
    settings: Settings, checkpoint: Checkpoint, files: SentenceFiles, spec: ModelSpec, *, encodes: bool
) -> PoolingConfig:
    """Return the config of vectors. The user takes precedence over the checkpoint's files, and these over the usual
    method.
    """
    kinds, source = _kinds(settings, checkpoint, files, encodes=encodes)
    normalize = files.normalize if files.are_there else True
    activation = requested_activation(settings)
    size = spec.hidden_size * len(kinds)
    for module in files.dense:
        outputs, inputs = module.shape
        if inputs != size:
            raise UserError(f"{module.directory}: its Dense module takes {inputs} numbers, but is given {size}.")
        size = outputs
    return PoolingConfig(
        kinds=kinds,
        normalize=normalize if activation is None else activation,
        size=size,
        dimensions=_dimensions(checkpoint.manifest.config),
        head="dense" if files.dense else "",
        dense=tuple(files.dense),
        prompts=files.prompts,
        default_prompt=files.default_prompt,
        source=source,
    )


def _kinds(
    settings: Settings, checkpoint: Checkpoint, files: SentenceFiles, *, encodes: bool
) -> tuple[tuple[PoolingKind, ...], str]:
    """Return the kinds of vectors, and what says so."""
    name = Path(checkpoint.path).name
    asked = requested_kind(settings)
    told = checkpoint.manifest.pooling
    if asked is not None:
        return (asked,), "--pooler-config"
    if files.kinds:
        return files.kinds, f"{MODULES} of {name}"
    if told is not None:
        return (told,), f"the metadata of {name}"
    if encodes and GRITLM in (checkpoint.manifest.config.get("architectures") or ()):
        return ("rest",), f"usual for {GRITLM}: the mean behind the instruction"
    if encodes:
        return ("cls",), f"usual for encoders: the checkpoint has no {MODULES}"
    return ("last",), f"usual for decoders: the checkpoint has no {MODULES}"


def _dimensions(hf_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the sizes for which the model was trained, where its configuration lists them."""
    listed = hf_config.get("matryoshka_dimensions")
    if not isinstance(listed, list):
        return ()
    return tuple(size for size in listed if is_count(size))
