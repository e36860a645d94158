"""Vocabularies as plain files: `vocab.json` with `merges.txt` (GPT-2's kind) and `vocab.txt` (BERT's).

Owns: their reading. Never does: build a tokenizer. Called by: `core_tokens.directory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.api.errors import CheckpointError
from core_tokens.checkpoint_files import MAX_VOCABULARY, read_json, read_text
from core_tokens.tokenizer_config import token_text
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.kinds import CONTROL, NORMAL

SPLITS = {
    **dict.fromkeys(("", "GPT2Tokenizer", "CodeGenTokenizer", "PreTrainedTokenizer", "TokenizersBackend"), "gpt-2"),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), "gpt-2"),
    "Qwen2Tokenizer": "qwen2",
}
"""How text is split, by tokenizer class, because these files do not say."""
ROBERTA = ("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer")
BERT_TOKENS = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
MAX_HOLES = 4096


def read_merges(directory: Path, settings: Mapping[str, Any]) -> Vocabulary:
    """Read `vocab.json` and `merges.txt`. Raises CheckpointError naming the file."""
    name = tokenizer_class(settings)
    if name not in SPLITS:
        raise CheckpointError(
            f"{directory}: how '{name}' splits text cannot be told from vocab.json and merges.txt. Make a tokenizer.json: "
            "transformers.AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(OTHER), and name it with --tokenizer."
        )
    tokens = _tokens_by_id(directory / "vocab.json")
    ids = {token: index for index, token in enumerate(tokens)}
    merges = _merges(directory / "merges.txt", ids)
    around = name in ROBERTA
    bos = _id(ids, settings.get("bos_token") or ("<s>" if around else None))
    eos = _id(ids, settings.get("eos_token") or ("</s>" if around else None))
    special = {_id(ids, settings.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return Vocabulary(
        model="bpe",
        tokens=tokens,
        pre=SPLITS[name],
        merges=merges,
        types=[CONTROL if index in special else NORMAL for index in range(len(tokens))],
        bos_token_id=bos,
        eos_token_id=eos,
        sep_token_id=eos if around else None,
        add_bos=around,
        add_sep=around,
        add_space_prefix=bool(settings.get("add_prefix_space")),
    )


def read_wordpiece(path: Path, settings: Mapping[str, Any]) -> Vocabulary:
    """Read `vocab.txt`, a token per line. Raises CheckpointError naming the file."""
    lines = read_text(path, MAX_VOCABULARY).split("\n")
    if lines[-1] == "":
        lines.pop()
    tokens = [line.removesuffix("\r") for line in lines]
    ids = {token: index for index, token in enumerate(tokens)}
    special = {key: _id(ids, settings.get(key) or usual) for key, usual in BERT_TOKENS.items()}
    named = set(special.values())
    return Vocabulary(
        model="wordpiece",
        tokens=tokens,
        types=[CONTROL if index in named else NORMAL for index in range(len(tokens))],
        unk_token_id=special["unk_token"],
        bos_token_id=special["cls_token"],
        sep_token_id=special["sep_token"],
        pad_token_id=special["pad_token"],
        add_bos=special["cls_token"] is not None,
        add_sep=special["sep_token"] is not None,
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars") is not False,
    )


def tokenizer_class(settings: Mapping[str, Any]) -> str:
    """Return the class name that transformers uses, without the suffix of fast tokenizers; empty when none is named."""
    name = settings.get("tokenizer_class")
    return name.removesuffix("Fast") if isinstance(name, str) else ""


def _id(ids: Mapping[str, int], value: Any) -> int | None:
    text = token_text(value)
    return None if text is None else ids.get(text)


def _tokens_by_id(path: Path) -> list[str]:
    found = read_json(path, MAX_VOCABULARY)
    if not isinstance(found, dict) or not found:
        raise CheckpointError(f"{path}: expected an object with tokens and their ids.")
    by_id: dict[int, str] = {}
    for token, index in found.items():
        if type(index) is not int or index < 0:
            raise CheckpointError(f"{path}: the token {token!r} has the id {index!r}; expected a number from 0.")
        if index in by_id:
            raise CheckpointError(f"{path}: the id {index} belongs to {by_id[index]!r} and to {token!r}.")
        by_id[index] = token
    size = max(by_id) + 1
    if size > len(by_id) + MAX_HOLES:
        raise CheckpointError(f"{path}: has {len(by_id)} tokens, but ids up to {size - 1}; it is damaged.")
    return [by_id.get(index, f"<|unused_{index}|>") for index in range(size)]


def _merges(path: Path, ids: Mapping[str, int]) -> list[str]:
    lines = read_text(path, MAX_VOCABULARY).split("\n")
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    merges = []
    for line in lines:
        merge = line.strip("\r")
        if not merge:
            continue
        parts = merge.split(" ")
        if len(parts) != 2 or any(part not in ids for part in (*parts, "".join(parts))):
            raise CheckpointError(
                f"{path}: the line {merge[:60]!r} joins no two tokens of vocab.json to a third one; the two files belong to "
                "different tokenizers, or one is damaged."
            )
        merges.append(merge)
    return merges
