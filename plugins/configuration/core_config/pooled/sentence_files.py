"""The files of sentence-transformers next to a checkpoint: modules, prompts, the longest text.

Owns: their reading, and the refusal of modules and modes by name. Never does: read weights, choose between generation
and pooling.
Called by: `core_config.pooled.pooling`.
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
"""Limit of such a file's size, in bytes."""

KINDS: Mapping[str, PoolingKind] = {
    "cls": "cls",
    "lasttoken": "last",
    "last": "last",
    "mean": "mean",
    "max": "max",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "root_mean",
}
"""Modes of sentence-transformers → kinds of pooling here."""
FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Switches of older files → the modes that they enable. The vectors of several modes are concatenated in this order."""
ACTIVATIONS: Mapping[str, str] = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
"""Torch classes in the files of Dense modules → activations here."""
SQUASHES: Mapping[str, Squash] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""Torch classes in the files of cross-encoders → activations of scores here."""


@dataclass(slots=True)
class SentenceFiles:
    """The settings in the files.

    are_there: whether there are any files.
    kinds: pooling of hidden states; empty: the files do not say.
    normalize: whether there is a Normalize module.
    dense: the Dense modules, in order.
    score_tokens: ids of the tokens whose logits are the score, the negative one first where there are two; empty:
        another head, or none at all.
    max_tokens: tokens of the longest text; None: the files do not say.
    lower_case: whether texts are converted to lower case.
    prompts: prompts by name.
    default_prompt: the name of one of them, or empty.
    squash: activation of a cross-encoder's scores; None: the files do not say.
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
    """Read the files in a checkpoint's directory. Raises CheckpointError for modules and modes that are not served."""
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
    """Return the activation of scores for a torch class. Raises CheckpointError for an unknown one. where: source, for
    the message.
    """
    squash = SQUASHES.get(str(name).rpartition(".")[2])
    if squash is None:
        raise CheckpointError(f"{where}: the activation {name!r} is not served; expected one of {', '.join(SQUASHES)}.")
    return squash


def _take(found: SentenceFiles, path: Path, module: Mapping[str, Any]) -> None:
    """Read one module of the list into `found`."""
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
    """Ignore a module that the engine has anyway, or that does nothing once a model is trained."""


def _take_normalize(found: SentenceFiles, folder: Path) -> None:
    found.normalize = True


def _modes(config: Mapping[str, Any]) -> list[str]:
    """Return the modes of pooling of a file, by name or by flag."""
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return [str(mode) for mode in named]
    modes = [mode for flag, mode in FLAGS.items() if config.get(flag) is True]
    unknown = [key for key, value in config.items() if key.startswith("pooling_mode_") and value and key not in FLAGS]
    return modes + unknown


def _take_pooling(found: SentenceFiles, folder: Path) -> None:
    """Read the modes of pooling that a file names or switches on."""
    path = folder / "config.json"
    config = _object(path)
    modes = _modes(config)
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
    """Read a Dense layer after the pooling."""
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
    """Read a score from one token's logit, or from two."""
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
"""The modules that are served → the function that reads each."""


def _take_settings(found: SentenceFiles, path: Path) -> None:
    """Read prompts, and the activation of a cross-encoder."""
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
    """Read the longest text for which the checkpoint was trained, and whether texts are in lower case."""
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
