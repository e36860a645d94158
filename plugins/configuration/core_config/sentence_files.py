"""The files of sentence-transformers beside a checkpoint: modules, prompts, the longest text.

Owns: their reading, and the refusal of modules and modes by name. Never does: read weights, decide what a model is run for.
Called by: `core_config.pooling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from core.api.errors import CheckpointError
from core.api.pooling import DenseModule, PoolingKind, Squash
from core_tokens.checkpoint_files import folder_inside, read_json

MODULES: Final = "modules.json"
SETTINGS: Final = "config_sentence_transformers.json"
TEXT_FILES: Final = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_xlnet_config.json",
)
MAX_FILE = 1 << 20
"""Bytes that such a file may have."""

KINDS: Mapping[str, PoolingKind] = {
    "cls": "cls",
    "lasttoken": "last",
    "last": "last",
    "mean": "mean",
    "max": "max",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "root_mean",
}
"""Modes of sentence-transformers, and what they are here."""
FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Switches of older files, and the modes that they stand for; of several, the vectors lie in this order."""
ACTIVATIONS: Mapping[str, str] = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
"""Classes of torch in the files of Dense modules, and what they are here."""
SQUASHES: Mapping[str, Squash] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""Classes of torch in the files of cross-encoders, and what they are here."""


@dataclass(slots=True)
class SentenceFiles:
    """What the files say.

    are_there: whether there are any.
    kinds: what becomes of hidden states; none: they say nothing of it.
    normalize: whether there is such a module.
    dense: the Dense modules, in order.
    score_tokens: ids of the tokens whose logits are the score, an unwanted one first where there are two; none: another
        head, or none at all.
    max_tokens: of the longest text; None: nobody says.
    lower_case: whether texts are read in small letters.
    prompts: by name.
    default_prompt: the name of one of them, or empty.
    squash: of a cross-encoder's numbers; None: nobody says.
    """

    are_there: bool = False
    kinds: tuple[PoolingKind, ...] = ()
    normalize: bool = False
    dense: list[DenseModule] = field(default_factory=list)
    score_tokens: tuple[int, ...] = ()
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    squash: Squash | None = None


def sentence_files(directory: Path) -> SentenceFiles:
    """The files in a checkpoint's directory. Raises CheckpointError for what is not served."""
    found = SentenceFiles()
    path = directory / MODULES
    if path.is_file():
        found.are_there = True
        modules = _json(path)
        if not isinstance(modules, list):
            raise CheckpointError(f"{path}: expected a list of modules, found a {type(modules).__name__}.")
        for module in modules:
            _take(found, path, module if isinstance(module, dict) else {})
        _take_text_settings(found, directory)
    if (directory / SETTINGS).is_file():
        _take_settings(found, directory / SETTINGS)
    return found


def squash_named(name: object, where: str) -> Squash:
    """What a class of torch does to numbers. Raises CheckpointError for an unknown one. where: for people."""
    squash = SQUASHES.get(str(name).rpartition(".")[2])
    if squash is None:
        raise CheckpointError(f"{where}: the activation {name!r} is not served; expected one of {', '.join(SQUASHES)}.")
    return squash


def _take(found: SentenceFiles, path: Path, module: Mapping[str, Any]) -> None:
    """One module of the list."""
    name = str(module.get("type", "")).rpartition(".")[2]
    take = MODULE_READERS.get(name)
    if take is None:
        raise CheckpointError(
            f"{path}: the module '{module.get('type')}' is not served; expected {', '.join(MODULE_READERS)}. "
            "Choose another model."
        )
    if found.normalize and name == "Dense":
        raise CheckpointError(
            f"{path}: a Dense module behind Normalize is not served; expected Normalize to be the last."
        )
    take(found, folder_inside(path.parent, str(module.get("path") or "")))


def _take_nothing(found: SentenceFiles, folder: Path) -> None:
    """Of a module that the engine has anyway, or that does nothing once a model is trained."""


def _take_normalize(found: SentenceFiles, folder: Path) -> None:
    found.normalize = True


def _take_pooling(found: SentenceFiles, folder: Path) -> None:
    """The modes of pooling that a file names or switches on."""
    path = folder / "config.json"
    config = _object(path)
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
    kinds = [KINDS[mode] for mode in modes if mode in KINDS]
    if not kinds or len(kinds) < len(modes):
        raise CheckpointError(
            f"{path}: the pooling {' and '.join(modes) or 'of no kind'} is not served; expected {', '.join(KINDS)}, or several "
            "of them. Name another one with --pooler-config.pooling-type if the model may be used so."
        )
    found.kinds = tuple(kinds)


def _take_dense(found: SentenceFiles, folder: Path) -> None:
    """A layer behind the pooling."""
    path = folder / "config.json"
    config = _object(path)
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise CheckpointError(
            f"{path}: module_input_name is {config['module_input_name']!r}; only vectors of texts are served."
        )
    sizes = []
    for name in ("out_features", "in_features"):
        size = config.get(name)
        if type(size) is not int or size < 1:
            raise CheckpointError(f"{path}: {name} is {size!r}; expected an integer from 1 on.")
        sizes.append(size)
    named = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = ACTIVATIONS.get(named.rpartition(".")[2])
    if activation is None:
        raise CheckpointError(
            f"{path}: the activation {named!r} is not served; expected one of {', '.join(ACTIVATIONS)}."
        )
    bias = config.get("bias", True) is True
    module = DenseModule(directory=str(folder), shape=(sizes[0], sizes[1]), bias=bias, activation=activation)
    found.dense.append(module)


def _take_logit_score(found: SentenceFiles, folder: Path) -> None:
    """A score of one token's logit, or of two."""
    path = folder / "config.json"
    config = _object(path)
    ids = []
    for name in ("false_token_id", "true_token_id"):
        value = config.get(name)
        if value is None and name == "false_token_id":
            continue
        if type(value) is not int or value < 0:
            raise CheckpointError(f"{path}: {name} is {value!r}; expected the id of a token.")
        ids.append(value)
    found.score_tokens = tuple(ids)


MODULE_READERS: Mapping[str, Callable[[SentenceFiles, Path], None]] = {
    "Transformer": _take_nothing,
    "Pooling": _take_pooling,
    "Dense": _take_dense,
    "Normalize": _take_normalize,
    "LogitScore": _take_logit_score,
    "Dropout": _take_nothing,
}
"""The modules that are served, and what is read of each."""


def _take_settings(found: SentenceFiles, path: Path) -> None:
    """Prompts, and the activation of a cross-encoder."""
    config = _object(path)
    prompts = config.get("prompts") or {}
    texts = prompts.values() if isinstance(prompts, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise CheckpointError(f"{path}: prompts is {prompts!r:.80}; expected an object of texts.")
    default = config.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise CheckpointError(f"{path}: default_prompt_name is {default!r}, which prompts does not have.")
    found.prompts = dict(prompts)
    found.default_prompt = default
    if config.get("activation_fn"):
        found.squash = squash_named(config["activation_fn"], str(path))


def _take_text_settings(found: SentenceFiles, directory: Path) -> None:
    """The longest text that the checkpoint was trained for, and the letters of texts."""
    for name in TEXT_FILES:
        path = directory / name
        if not path.is_file():
            continue
        config = _object(path)
        most = config.get("max_seq_length")
        if isinstance(most, int) and most > 0:
            found.max_tokens = most
        found.lower_case = config.get("do_lower_case") is True
        return


def _object(path: Path) -> dict[str, Any]:
    config = _json(path)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, found a {type(config).__name__}.")
    return config


def _json(path: Path) -> Any:
    return read_json(path, MAX_FILE)
