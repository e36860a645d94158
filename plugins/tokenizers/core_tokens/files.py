"""The tokenizer files of a directory.

Owns: their names and their order. Never does: read them (`core_tokens.directory` does), import anything heavy.
Called by: `core_tokens.directory`, loaders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from core.api.errors import CheckpointError

FILE_MODES = ("auto", "hf", "slow", "mistral", "deepseek_v32")
"""Values of `--tokenizer-mode` that choose among files; any other one is a plugin's name."""

Kind = Literal["json", "tekken", "model", "tiktoken", "merges", "wordpiece"]

ORDER: tuple[tuple[str, Kind], ...] = (
    ("tokenizer.json", "json"),
    ("tekken.json", "tekken"),
    ("tokenizer.model", "model"),
    ("spiece.model", "model"),
    ("sentencepiece.bpe.model", "model"),
    ("tokenizer.model.v*", "model"),
    ("tiktoken.model", "tiktoken"),
    ("*.tiktoken", "tiktoken"),
    ("vocab.json", "merges"),
    ("vocab.txt", "wordpiece"),
)
"""File names and their formats, in order of precedence."""

PATTERNS = (*(name for name, _ in ORDER), "tokenizer*", "merges.txt", "added_tokens.json", "special_tokens_map.json")
TEMPLATE_PATTERNS = ("*.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
NAMES = "tokenizer.json, tekken.json, tokenizer.model, *.tiktoken, vocab.json with merges.txt, or vocab.txt"


class TokenizerFile(NamedTuple):
    """A file that a tokenizer can be made from."""

    kind: Kind
    path: Path


def has_tokenizer(directory: Path) -> bool:
    """Whether any of these files exists."""
    return bool(_found(directory))


def find_tokenizer_file(path: Path, mode: str = "auto") -> TokenizerFile:
    """Return the file to read: `path` itself, or the first one in the directory `path` that the mode allows.

    mode: `auto`, `hf` and `deepseek_v32` take tokenizer.json first; `slow` takes the format's own files only; `mistral` takes
    tekken.json or a sentencepiece file. Raises CheckpointError when there is none.
    """
    if path.is_file():
        return _named_file(path)
    found = _found(path)
    if mode == "slow":
        allowed = [file for file in found if file.kind != "json"]
        hint = "--tokenizer-mode slow reads the format's own files, not tokenizer.json; leave it out"
    elif mode == "mistral":
        allowed = [file for file in found if file.kind in ("tekken", "model")]
        hint = "--tokenizer-mode mistral reads tekken.json or tokenizer.model; leave it out for other files"
    else:
        allowed = found
        hint = f"expected {NAMES}. Name a directory that has one with --tokenizer"
    if not allowed:
        raise CheckpointError(
            f"{path}: there is no tokenizer.json or other file of a tokenizer that can be used: {hint}."
        )
    return allowed[0]


def _found(directory: Path) -> list[TokenizerFile]:
    found = []
    for pattern, kind in ORDER:
        for path in sorted(directory.glob(pattern)):
            usable = kind != "merges" or (directory / "merges.txt").is_file()
            if usable and path.is_file():
                found.append(TokenizerFile(kind, path))
    return found


def _named_file(path: Path) -> TokenizerFile:
    for pattern, kind in ORDER:
        if path.match(pattern):
            return TokenizerFile(kind, path)
    raise CheckpointError(f"--tokenizer {path}: is no file of a tokenizer; expected {NAMES}, or a directory.")
