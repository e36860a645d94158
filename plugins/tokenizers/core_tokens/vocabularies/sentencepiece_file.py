"""Sentencepiece's model files (`tokenizer.model`): a message in protobuf's wire format.

Owns: the parsing of the relevant fields. Never does: tokenize. Called by: `core_tokens.directory`.

The format is a sequence of fields, each a number with its kind followed by a value; twenty lines parse it without a
package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.api.errors import CheckpointError
from core_tokens.checkpoint_files import MAX_VOCABULARY, read_file
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.kinds import NORMAL, UNKNOWN

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
MAX_VARINT_BYTES = 10

PIECE = 1
TRAINER = 2
NORMALIZER = 3
DENORMALIZER = 5
UNIGRAM = 1
BPE = 2
OTHER_MODELS = {3: "word", 4: "char"}
INT32 = 1 << 31

Value = int | bytes


@dataclass(slots=True)
class Pieces:
    """The parsed repeated field of pieces."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)


def read_sentencepiece(path: Path) -> Vocabulary:
    """Read the vocabulary of a model file. Raises CheckpointError naming the file."""
    data = read_file(path, MAX_VOCABULARY)
    pieces = Pieces()
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    try:
        for number, value in _fields(data):
            if number == PIECE:
                _add_piece(pieces, _message(value))
            elif number == TRAINER:
                trainer.update(_fields(_message(value)))
            elif number == NORMALIZER:
                normalizer.update(_fields(_message(value)))
            elif number == DENORMALIZER and dict(_fields(_message(value))).get(2):
                raise ValueError("it rewrites text after decoding, which is not supported")
        return _vocabulary(path, pieces, trainer, normalizer)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: cannot be read as a sentencepiece model ({error}); load the file again, or name another tokenizer "
            "with --tokenizer."
        ) from None


def looks_like_sentencepiece(data: bytes) -> bool:
    """Whether a file begins with a piece's field, which tiktoken's text files do not."""
    return data[:1] == b"\x0a" and data[2:3] == b"\x0a"


def _vocabulary(path: Path, pieces: Pieces, trainer: dict[int, Value], normalizer: dict[int, Value]) -> Vocabulary:
    kind = _number(trainer, 3, UNIGRAM)
    if kind in OTHER_MODELS:
        raise CheckpointError(
            f"{path}: is a sentencepiece model of the kind '{OTHER_MODELS[kind]}'; expected bpe or unigram. Name another "
            "tokenizer with --tokenizer."
        )
    if kind not in (UNIGRAM, BPE):
        raise ValueError(f"its kind is {kind}")
    if not pieces.tokens:
        raise ValueError("it has no pieces")
    if not _number(normalizer, 5, 1):
        raise ValueError("it keeps spaces as they are (escape_whitespaces is off), which is not supported")
    if _number(trainer, 24, 0):
        raise ValueError("it puts spaces behind words (treat_whitespace_as_suffix), which is not supported")
    size = len(pieces.tokens)
    unknown = _token(trainer, 40, 0, size)
    if unknown is None and UNKNOWN in pieces.types:
        unknown = pieces.types.index(UNKNOWN)
    bos = _token(trainer, 41, 1, size)
    return Vocabulary(
        model="unigram" if kind == UNIGRAM else "spm",
        tokens=pieces.tokens,
        scores=pieces.scores,
        types=pieces.types,
        unk_token_id=unknown,
        bos_token_id=bos,
        eos_token_id=_token(trainer, 42, 2, size),
        pad_token_id=_token(trainer, 43, -1, size),
        byte_fallback=bool(_number(trainer, 35, 0)),
        charsmap=_message(normalizer.get(2, b"")),
        add_space_prefix=bool(_number(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_number(normalizer, 4, 1)),
    )


def _add_piece(pieces: Pieces, data: bytes) -> None:
    found = dict(_fields(data))
    score = _number(found, 2, 0)
    if score >= 1 << 32:
        raise ValueError("a score of more than 32 bits")
    pieces.tokens.append(_message(found.get(1, b"")).decode())
    pieces.scores.append(struct.unpack("<f", struct.pack("<I", score))[0])
    pieces.types.append(_number(found, 3, NORMAL))


def _token(values: dict[int, Value], number: int, default: int, size: int) -> int | None:
    """Return a token id; None for a negative one, which means that there is none. Negative numbers are stored as 64
    bits.
    """
    index = _number(values, number, default)
    if index >= INT32 or index < 0:
        return None
    return index if index < size else None


def _number(values: dict[int, Value], number: int, default: int) -> int:
    value = values.get(number, default)
    if isinstance(value, bytes):
        raise ValueError(f"its field {number} is text, expected a number")
    return value


def _message(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a message was expected")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message in order. Raises ValueError for a truncated or invalid message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        value: Value
        if kind == VARINT:
            value, position = _varint(data, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
            value = int.from_bytes(_slice(data, position, size), "little")
            position += size
        elif kind == BYTES:
            size, position = _varint(data, position)
            value = _slice(data, position, size)
            position += size
        else:
            raise ValueError(f"a field of the unknown kind {kind} at byte {position}")
        yield key >> 3, value


def _slice(data: bytes, position: int, size: int) -> bytes:
    end = position + size
    if end > len(data):
        raise ValueError(f"it ends within a field of {size} bytes")
    return data[position:end]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a number in groups of seven bits, lowest first; returns it with the position after it."""
    value = 0
    for count in range(MAX_VARINT_BYTES):
        if position >= len(data):
            raise ValueError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number of more than {MAX_VARINT_BYTES} bytes")
