"""Files that rank tokens by their bytes: tiktoken's (base64 and a rank per line) and Mistral's `tekken.json`.

Owns: the reading of both. Never does: know which model a file belongs to (`core_tokens.directory` does).
Called by: `core_tokens.directory`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex

from core.api.errors import CheckpointError
from core_tokens.checkpoint_files import MAX_VOCABULARY, read_file, read_json
from core_tokens.pieces import BYTE_CHARACTERS
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.kinds import CONTROL, NORMAL, USER_DEFINED

WAY_OUT = "load the file again, or name another tokenizer with --tokenizer"
MAX_TEKKEN_TOKENS = 1 << 24
OLD_TEKKEN_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *(
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
        "[SUFFIX]",
    ),
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Special tokens of files up to version 7, which do not list them."""


def read_tiktoken(path: Path, pre: str, special: Mapping[int, str]) -> Vocabulary:
    """Read the vocabulary of a tiktoken file. Raises CheckpointError naming the file. Raises CheckpointError naming the
    file.

    pre: name of the pre-tokenizer, which the file does not contain.
    special: id → special token, which it does not contain either.
    """
    ranks: dict[int, bytes] = {}
    for number, line in enumerate(read_file(path, MAX_VOCABULARY).splitlines(), start=1):
        if not line.strip():
            continue
        rank, data = _row(path, number, line)
        if rank in ranks:
            raise CheckpointError(f"{path}: line {number}: the rank {rank} is given twice; {WAY_OUT}.")
        ranks[rank] = data
    if not ranks:
        raise CheckpointError(f"{path}: holds no tokens; {WAY_OUT}.")
    tokens = _consecutive(path, ranks)
    scores = [-float(rank) for rank in range(len(tokens))]
    types = [NORMAL] * len(tokens)
    for index in range(len(tokens), max(special, default=-1) + 1):
        # Ids between the file's last and the last special token are reserved; the engine needs a name for each.
        tokens.append(special.get(index, f"<|reserved_token_{index}|>"))
        scores.append(0.0)
        types.append(CONTROL)
    return Vocabulary(model="bpe", tokens=tokens, pre=pre, scores=scores, types=types)


def count_tiktoken(path: Path) -> int:
    """Return the number of tokens in a tiktoken file."""
    return sum(1 for line in read_file(path, MAX_VOCABULARY).splitlines() if line.strip())


class Tekken(NamedTuple):
    """A parsed `tekken.json`. version: of its format (`v3`, `v7`, ...), which determines how conversations are written."""

    vocabulary: Vocabulary
    version: str


def read_tekken(path: Path) -> Tekken:
    """Read the vocabulary of a `tekken.json`: special tokens first, then the ranked ones. Raises CheckpointError."""
    try:
        found = read_json(path, MAX_VOCABULARY)
        config = found["config"]
        size = _count(config, "default_vocab_size")
        num_special = _count(config, "default_num_special_tokens")
        pattern = config["pattern"]
        rows = found["vocab"]
        special, types = _special_tokens(found, num_special)
        ranks = _tekken_ranks(rows, size - num_special)
        Regex(pattern)
    except CheckpointError:
        raise
    except KeyError as error:
        raise CheckpointError(f"{path}: lacks the key {error}; {WAY_OUT}.") from None
    except Exception as error:  # any kind: the document may contain anything, and the library raises plain exceptions
        raise CheckpointError(f"{path}: cannot be read as a tekken vocabulary ({error}); {WAY_OUT}.") from None
    tokens = _consecutive(path, ranks)
    beginning = special.index("<s>") if "<s>" in special else None
    vocabulary = Vocabulary(
        model="bpe",
        tokens=special + tokens,
        pattern=pattern,
        scores=[0.0] * num_special + [-float(rank) for rank in range(len(tokens))],
        types=types + [NORMAL] * len(tokens),
        bos_token_id=beginning,
        eos_token_id=special.index("</s>") if "</s>" in special else None,
        pad_token_id=special.index("<pad>") if "<pad>" in special else None,
        unk_token_id=special.index("<unk>") if "<unk>" in special else None,
        add_bos=beginning is not None,
    )
    return Tekken(vocabulary, str(config.get("version")))


def _row(path: Path, number: int, line: bytes) -> tuple[int, bytes]:
    parts = line.split()
    try:
        encoded, rank = parts
        return int(rank), base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise CheckpointError(
            f"{path}: line {number} is {line[:40]!r}; expected a token in base64, a space and its rank; {WAY_OUT}."
        ) from None


def _consecutive(path: Path, ranks: Mapping[int, bytes]) -> list[str]:
    """Return the tokens by rank, spelled in printable characters. Raises CheckpointError unless ranks are 0, 1, 2, ..."""
    tokens = []
    for rank in range(len(ranks)):
        if rank not in ranks:
            raise CheckpointError(f"{path}: has {len(ranks)} tokens, but none of rank {rank}; {WAY_OUT}.")
        data = ranks[rank]
        tokens.append("".join([BYTE_CHARACTERS[byte] for byte in data]))
    return tokens


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config[name]
    if type(value) is not int or not 0 <= value <= MAX_TEKKEN_TOKENS:
        raise ValueError(f"{name} is {value!r}, expected a number of tokens")
    return value


def _special_tokens(found: Mapping[str, Any], count: int) -> tuple[list[str], list[int]]:
    """Return the special tokens by id, `<SPECIAL_n>` for unused ids, and their types."""
    rows = found.get("special_tokens")
    if rows is None:
        rows = [{"rank": rank, "token_str": text} for rank, text in enumerate(OLD_TEKKEN_TOKENS)]
    tokens = [f"<SPECIAL_{rank}>" for rank in range(count)]
    types = [CONTROL] * count
    for row in rows:
        rank = row["rank"]
        if type(rank) is not int or not 0 <= rank < count:
            raise ValueError(f"the special token {row['token_str']!r} has the rank {rank!r}, expected 0 to {count - 1}")
        tokens[rank] = row["token_str"]
        if not row.get("is_control", True):
            types[rank] = USER_DEFINED
    return tokens, types


def _tekken_ranks(rows: Sequence[Mapping[str, Any]], most: int) -> dict[int, bytes]:
    if len(rows) < most:
        raise ValueError(f"it has {len(rows)} tokens, its configuration says {most}")
    ranks: dict[int, bytes] = {}
    for row in rows:
        rank = row["rank"]
        if rank in ranks:
            raise ValueError(f"the rank {rank} is given twice")
        if rank < most:
            ranks[rank] = base64.b64decode(row["token_bytes"], validate=True)
    return ranks
