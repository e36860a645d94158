"""Whether a model is run for its hidden states, and how they are pooled.

Owns: the choice of the runner, and the reading of sentence-transformers' files (`modules.json`, `1_Pooling/config.json`,
`sentence_bert_config.json`). Never does: read weights, compute. Called by: resolve.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from core.api.decoder_spec import DecoderSpec
from core.api.errors import CheckpointError, UserError
from core.api.module_spec import ModelSpec
from core.api.pooling import PoolingConfig, PoolingKind
from core.config.checkpoint import Checkpoint
from core.config.rules import is_count
from core.config.settings import Settings, underscored

MODULES = "modules.json"
TEXT_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json")
MAX_FILE = 1 << 20
"""Bytes of such a file; more are not read."""

KINDS: Mapping[str, PoolingKind] = {"cls": "cls", "lasttoken": "last", "mean": "mean", "last": "last"}
"""Modes of sentence-transformers, and what they are here."""
FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Switches of older files, and the modes that they stand for."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What the files of a checkpoint say.

    kind: None: they say nothing of it.
    normalize: whether there is such a module.
    max_tokens: of the longest text; None: nobody says.
    """

    kind: PoolingKind | None = None
    normalize: bool = False
    max_tokens: int | None = None


def find_pooling(settings: Settings, checkpoint: Checkpoint, spec: ModelSpec) -> PoolingConfig | None:
    """How the model pools; None: it generates text. Raises UserError.

    checkpoint: as it was located.
    """
    directory = Path(checkpoint.path)
    encodes = isinstance(spec, DecoderSpec) and not spec.causal_lm
    has_files = (directory / MODULES).is_file()
    runner = settings["runner"]
    asks = settings.mapping("pooler_config") or settings["convert"] == "embed"
    if runner == "auto" and encodes:
        runner = "pooling"
        settings.derive("runner", runner, "the model is an encoder")
    elif runner == "auto" and has_files:
        runner = "pooling"
        settings.derive("runner", runner, f"the checkpoint has {MODULES} of sentence-transformers")
    elif runner == "auto" and asks:
        runner = "pooling"
        settings.derive("runner", runner, "--convert or --pooler-config asks for vectors")
    elif runner == "auto":
        settings.derive("runner", "generate", "the model has a head for the next token")
    if runner != "pooling":
        if encodes:
            raise UserError(
                f"model '{checkpoint.manifest.ref}' is an encoder ({spec.family}), which generates no text: it serves "
                "--runner pooling. Choose a model with a head for the next token, or leave --runner out."
            )
        return None
    if settings["convert"] == "none" and not encodes:
        raise UserError(
            f"--runner pooling --convert none: '{checkpoint.manifest.ref}' is made for text; use --convert embed."
        )
    hf_config = checkpoint.manifest.config
    return _pooling(settings, directory, _read(directory), spec, hf_config, encodes=encodes)


def _pooling(
    settings: Settings,
    directory: Path,
    files: _Files,
    spec: ModelSpec,
    hf_config: Mapping[str, Any],
    *,
    encodes: bool,
) -> PoolingConfig:
    """What the user says goes before what the files say, and that before what is usual."""
    keys = underscored(settings.mapping("pooler_config"))
    names = {str(keys[name]).lower() for name in ("pooling_type", "seq_pooling_type") if keys.get(name)}
    if len(names) > 1:
        raise UserError("--pooler-config: pooling_type and seq_pooling_type differ; leave one of them out.")
    kind = files.kind
    source = f"{MODULES} of {directory.name}"
    if names:
        kind = KINDS[names.pop()]
        source = "--pooler-config"
    normalize = files.normalize
    if kind is None:
        kind = "cls" if encodes else "last"
        normalize = True
        source = f"usual for {'encoders' if encodes else 'decoders'}: the checkpoint has no {MODULES}"
    for name in ("normalize", "use_activation"):
        if keys.get(name) is not None:
            normalize = bool(keys[name])
    return PoolingConfig(
        kind=kind,
        normalize=normalize,
        size=spec.hidden_size,
        max_tokens=files.max_tokens,
        dimensions=_dimensions(hf_config),
        source=source,
    )


def _dimensions(hf_config: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes for which the model was trained, where its configuration lists them."""
    listed = hf_config.get("matryoshka_dimensions")
    if not isinstance(listed, list):
        return ()
    return tuple(size for size in listed if is_count(size))


def _read(directory: Path) -> _Files:
    """The files of sentence-transformers beside a checkpoint. Raises CheckpointError for what is not served."""
    path = directory / MODULES
    if not path.is_file():
        return _Files()
    kind: PoolingKind | None = None
    normalize = False
    modules = _json(path)
    if not isinstance(modules, list):
        raise CheckpointError(f"{path}: expected a list of modules, found a {type(modules).__name__}.")
    for module in modules:
        described = module if isinstance(module, dict) else {}
        name = str(described.get("type", "")).rpartition(".")[2]
        folder = directory / str(described.get("path", ""))
        if name == "Pooling":
            kind = _kind(folder / "config.json")
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise CheckpointError(
                f"{path}: the module '{described.get('type')}' is not served; expected Transformer, Pooling and Normalize. "
                "Choose another model."
            )
    return _Files(kind, normalize, _max_tokens(directory))


def _kind(path: Path) -> PoolingKind:
    """The one mode of pooling that a file switches on."""
    config = _json(path)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, found a {type(config).__name__}.")
    named = config.get("pooling_mode")
    if isinstance(named, str):
        modes = [named]
    elif isinstance(named, list):
        modes = [str(mode) for mode in named]
    else:
        modes = [mode for flag, mode in FLAGS.items() if config.get(flag) is True]
        modes += [
            key for key, value in config.items() if key.startswith("pooling_mode_") and value and key not in FLAGS
        ]
    if config.get("include_prompt") is False:
        raise CheckpointError(f"{path}: include_prompt is false, which is not served: every token of a text counts.")
    kind = KINDS.get(modes[0]) if len(modes) == 1 else None
    if kind is None:
        raise CheckpointError(
            f"{path}: the pooling {' and '.join(modes) or 'of no kind'} is not served; expected one of cls, mean and "
            "lasttoken. Name another one with --pooler-config.pooling-type if the model may be used so."
        )
    return kind


def _max_tokens(directory: Path) -> int | None:
    """The longest text that the checkpoint was trained for, as its files say."""
    for name in TEXT_FILES:
        path = directory / name
        if not path.is_file():
            continue
        config = _json(path)
        most = config.get("max_seq_length") if isinstance(config, dict) else None
        if isinstance(most, int) and most > 0:
            return most
    return None


def _json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return cast(Any, json.loads(file.read(MAX_FILE)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error
