"""Tensors of rows that requests give in place of a picture or sound, as items of a prompt.

Owns: their decoding, their checks, and the text that stands for them. Never does: unpickle, or know a tower. Called by: what
prepares requests.

A tensor in a request is base64 of a file of torch.save or safetensors, as in vLLM; neither is unpickled.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.api.errors import CheckpointError, RequestError
from core_media.config import IMAGE, NOUNS, MediaConfig
from core_media.processing.processed import Processed
from core_media.reading.rows import FORM, GRID, Given, check_served
from core_runtime.specs.checkpoint import ITEM_BYTES
from core_runtime.weights.sent_tensor import sent_tensor
from core_runtime.weights.torch_files import read_tensor

MOST_ROWS: Final = 1 << 20
MOST_SIDE: Final = 1 << 16


class Rows(msgspec.Struct, frozen=True):
    """Checked rows. data: float32 [count, size]. grid: of rows in time, height and width, or empty."""

    data: bytes
    count: int
    grid: list[int]


def embedded(given: Given, modality: str, row_text: str, config: MediaConfig) -> Processed:
    """Return an item whose rows are given. row_text: spelling of the token that they replace. Raises RequestError."""
    check_served(config, modality)
    rows = _checked(given, modality, config)
    before, after = config.around_rows[modality]
    facts = ("rows", modality, rows.count, rows.grid)
    digest = hashlib.sha256(repr(facts).encode() + hashlib.sha256(rows.data).digest()).hexdigest()
    return Processed(digest, before + row_text * rows.count + after, b"", modality, rows.data, rows.grid)


def _checked(given: Given, modality: str, config: MediaConfig) -> Rows:
    """Raises RequestError."""
    noun, size = NOUNS[modality], config.row_size
    values = _floats(given.tensor, size) if isinstance(given.tensor, str) else np.asarray(given.tensor, np.float32)
    values = values.reshape(_shape(values.shape, size))
    if not np.isfinite(values).all():
        raise RequestError(f"the rows of a {noun} hold NaN or infinity; expected finite numbers")
    grid = _grid(given.grid, len(values), config) if modality == IMAGE else []
    if config.row_scale != 1.0:
        values = values * np.float32(config.row_scale)
    return Rows(np.ascontiguousarray(values).tobytes(), len(values), grid)


def _floats(text: str, size: int) -> NDArray[np.float32]:
    """Return the numbers of a file in base64. Raises RequestError."""
    data = _decoded(text)
    try:
        tensor = sent_tensor("the tensor", data)
    except CheckpointError as error:
        raise RequestError(str(error).removesuffix(".")) from None
    rows, _ = _shape(tensor.shape, size)
    # A file of a few bytes may claim any shape.
    if rows * size * ITEM_BYTES[tensor.dtype] > len(data):
        raise RequestError(
            f"the tensor has the shape {tensor.shape}, but its file has {len(data)} bytes; send tensor.contiguous()"
        )
    return tensor.floats()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise RequestError(f"the tensor is no base64; {FORM}") from None


def _shape(shape: Sequence[int], size: int) -> tuple[int, int]:
    """Return rows and size; a batch of one item counts as that item. Raises RequestError."""
    inner = tuple(shape[1:]) if len(shape) == 3 and shape[0] == 1 else tuple(shape)
    if len(inner) != 2 or inner[1] != size or not 1 <= inner[0] <= MOST_ROWS:
        raise RequestError(
            f"the tensor has the shape {tuple(shape)}; expected (rows, {size}), with 1 to {MOST_ROWS} rows"
        )
    return inner[0], inner[1]


def _grid(given: object, count: int, config: MediaConfig) -> list[int]:
    """Return the grid of rows, of one of patches; empty for a model whose rows have one position. Raises RequestError."""
    if not config.merged:
        if given is not None:
            raise RequestError(f"{GRID} is of models with positions in three directions; leave it out")
        return []
    if given is None:
        raise RequestError(f"{GRID} is missing; expected [time, height, width] in patches")
    numbers = _numbers(given)
    merged = config.merged
    if (
        len(numbers) != 3
        or not all(1 <= number <= MOST_SIDE for number in numbers)
        or any(n % merged for n in numbers[1:])
    ):
        raise RequestError(
            f"{GRID} is {str(numbers)[:80]}; expected [time, height, width], with sides that {merged} divides"
        )
    time, height, width = numbers[0], numbers[1] // merged, numbers[2] // merged
    if time * height * width != count:
        raise RequestError(f"{GRID} {numbers} has {time * height * width} rows, and the tensor {count}")
    return [time, height, width]


def _numbers(given: object) -> list[int]:
    """Return the numbers of a grid: a list, an array, or a tensor of int64 in a file of torch.save. Raises RequestError."""
    if isinstance(given, str):
        data = _decoded(given)
        try:
            info, _ = read_tensor(GRID, data)
        except CheckpointError as error:
            raise RequestError(str(error).removesuffix(".")) from None
        if info.dtype != "I64" or [*info.shape] not in ([3], [1, 3]) or info.offset + 24 > len(data):
            raise RequestError(f"{GRID} is {info.dtype} {list(info.shape)}; expected three numbers of int64")
        return [int(number) for number in np.frombuffer(data, "<i8", 3, info.offset)]
    found = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    if not isinstance(found, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        raise RequestError(f"{GRID} is {str(given)[:80]}; expected [time, height, width] in patches")
    return found
