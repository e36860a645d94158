"""Configuration files of a tokenizer: `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`.

Owns: their reading, and the reason for every ignored key. Never does: change a tokenizer.
Called by: `core_tokens.directory`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from core.api.errors import CheckpointError
from core_tokens.checkpoint_files import MAX_INDEX, read_json

logger = logging.getLogger(__name__)

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Keys that name special tokens."""

READ = {
    *NAMED,
    *("add_bos_token", "add_eos_token", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
    *("chat_template", "split_special_tokens", "tokenizer_class", "add_prefix_space", "legacy", "do_lower_case"),
    *("strip_accents", "tokenize_chinese_chars"),
}

NEUTRAL = {
    "auto_map": "names remote code, which is not run",
    "name_or_path": "where the tokenizer was saved",
    "_commit_hash": "where the tokenizer came from",
    "transformers_version": "of the program that saved the tokenizer",
    "tokenizer_file": "where the tokenizer was saved",
    "vocab_file": "where the tokenizer was saved",
    "merges_file": "where the tokenizer was saved",
    "special_tokens_map_file": "where the tokenizer was saved",
    "backend": "of the program that saved the tokenizer",
    "is_local": "of the program that saved the tokenizer",
    "local_files_only": "of the program that saved the tokenizer",
    "processor_class": "of images and sound",
    "image_processor*": "of images",
    "feature_extractor_type": "of sound",
    "model_max_length": "the model's configuration limits --max-model-len",
    "max_len*": "the model's configuration limits --max-model-len",
    "max_length": "texts are not truncated here",
    "stride": "texts are not truncated here",
    "truncation*": "texts are not truncated here",
    "padding*": "texts are not padded",
    "pad_to_multiple_of": "texts are not padded",
    "pad_token_type_id": "texts are not padded",
    "model_input_names": "the engine knows its inputs",
    "return_token_type_ids": "the engine knows its inputs",
    "add_special_tokens": "a request says so",
    "clean_up_tokenization_spaces*": "text is what the tokens spell; transformers leaves it off for BPE too",
    "spaces_between_special_tokens": "these tokenizers never add spaces of their own",
    "use_default_system_prompt": "the chat template says so",
    "sp_model_kwargs": "sampling of segmentations is for training",
    "tokenizer_type": "the files say so",
    "never_split": "added tokens are never split",
    "do_basic_tokenize": "BERT's words are always split first",
    "trim_offsets": "offsets are not reported",
    "errors": "bytes that form no character become U+FFFD",
    "fix_mistral_regex": "tokenizer.json says how text is split",
    "from_slow": "of the program that saved the tokenizer",
    "use_fast": "of the program that saved the tokenizer",
    "device_map": "of the program that saved the tokenizer",
    "trust_remote_code": "an argument says so",
    "response_schema": "answers are parsed by the server",
    "*_token_id": "a name that other programs give to a token",
    "*_tokens": "names that other programs give to tokens",
    "eod_id": "a name that other programs give to a token",
    "language": "of speech",
    "task": "of speech",
    "src_lang": "of translation models",
    "tgt_lang": "of translation models",
    "extra_ids": "added_tokens_decoder lists them",
    "remove_space": "tokenizer.json or the model file says so",
    "keep_accents": "tokenizer.json or the model file says so",
    "phrase_tokens*": "of models with boxes",
}
"""Keys (`*` matches any characters) that change nothing here, with the reason."""


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """Return all keys; those of `tokenizer_config.json` take precedence. Unknown keys are reported in a warning. Keys
    that nobody knows are said in a warning.

    `added_tokens_decoder` becomes id → token, merged with `added_tokens.json`. Raises CheckpointError naming the file.
    """
    found = _object(directory / "special_tokens_map.json")
    path = directory / "tokenizer_config.json"
    found.update(_object(path))
    _check(path, found)
    found["added_tokens_decoder"] = _added_tokens(directory, found.get("added_tokens_decoder") or {})
    return found


def token_text(value: Any) -> str | None:
    """Return the text of a special token, which may be a mapping with further properties."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def why_neutral(key: str) -> str | None:
    """Return the reason why a key is ignored; None for one that is read or unknown."""
    if key in READ:
        return None
    if key.endswith("_token"):
        return "names a token, which is special"
    for pattern, reason in NEUTRAL.items():
        if fnmatchcase(key, pattern):
            return reason
    return None


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = read_json(path, MAX_INDEX)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(found).__name__}, expected an object.")
    return found


def _check(path: Path, found: Mapping[str, Any]) -> None:
    for key in ("add_bos_token", "add_eos_token", "split_special_tokens"):
        value = found.get(key)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"{path}: {key} is {value!r}, expected true or false.")
    unknown = sorted(key for key in found if key not in READ and why_neutral(key) is None)
    if unknown:
        logger.warning("%s: keys that nobody here knows, and that were not read: %s.", path, ", ".join(unknown))


def _added_tokens(directory: Path, decoder: Any) -> dict[int, dict[str, Any]]:
    """Return id → token with its properties, from both files."""
    path = directory / "tokenizer_config.json"
    if not isinstance(decoder, dict):
        raise CheckpointError(f"{path}: added_tokens_decoder is no mapping; expected ids with their tokens.")
    added: dict[int, dict[str, Any]] = {}
    for name, index in _object(directory / "added_tokens.json").items():
        if type(index) is not int or index < 0:
            raise CheckpointError(f"{directory / 'added_tokens.json'}: the token {name!r} has the id {index!r}.")
        added[index] = {"content": name}
    for key, row in decoder.items():
        if token_text(row) is None or not str(key).isdecimal():
            raise CheckpointError(f"{path}: added_tokens_decoder has {key!r}: {row!r}; expected an id and its token.")
        added[int(key)] = row if isinstance(row, dict) else {"content": row}
    return added
