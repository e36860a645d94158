"""Tensors in requests: a file of torch.save or a safetensors file with one tensor, read without torch.

Owns: the detection of the format, the place of the numbers, and their conversion to float32. Never does: unpickle, or
make more numbers than its caller has allowed by the shape. Called by: the preparation of completions.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import ITEM_BYTES
from core_runtime.weights.torch_files import read_tensor

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 65_536
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Numpy types of embeddings; a bfloat16 is the upper half of a float32."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class SentTensor(NamedTuple):
    """One tensor within the bytes of a file. strides: in elements, one per dimension. offset: of its first element in
    `data`.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int
    data: bytes

    def floats(self) -> NDArray[np.float32]:
        """Return all numbers as float32, in the tensor's shape."""
        kind = np.dtype(FLOATS[self.dtype])
        flat = np.frombuffer(self.data, np.uint8)[self.offset :]
        whole = flat[: len(flat) // kind.itemsize * kind.itemsize].view(kind)
        # The stride of a dimension of size 1 is never used, and files may contain any value there.
        steps = [
            stride * kind.itemsize if length > 1 else 0 for length, stride in zip(self.shape, self.strides, strict=True)
        ]
        view = as_strided(whole, self.shape, steps, writeable=False)
        if self.dtype == "BF16":
            return (view.astype(np.uint32) << np.uint32(16)).view(np.float32)
        with np.errstate(over="ignore"):  # values beyond float32 become infinity, which the caller checks for
            return np.ascontiguousarray(view, np.float32)


class _Entry(msgspec.Struct):
    """Header entry of one tensor in a safetensors file."""

    dtype: str
    shape: list[Natural]
    data_offsets: tuple[Natural, Natural]


def sent_tensor(name: str, data: bytes) -> SentTensor:
    """Return the one tensor of a file. name: for errors. Raises CheckpointError."""
    if data[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{":
        found = _safetensors(name, data)
    else:
        info, strides = read_tensor(name, data)
        found = SentTensor(info.shape, strides, info.dtype, info.offset, data)
    if found.dtype not in FLOATS:
        raise CheckpointError(f"{name}: its numbers are {found.dtype}; expected one of {', '.join(FLOATS)}.")
    return found


def _safetensors(name: str, data: bytes) -> SentTensor:
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if length > MAX_HEADER_BYTES or start > len(data):
        raise CheckpointError(f"{name}: is a damaged safetensors file, or one with many tensors; expected one tensor.")
    try:
        entries = msgspec.json.decode(data[LENGTH_BYTES:start], type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        if len(entries) != 1:
            raise CheckpointError(f"{name}: has {len(entries)} tensors; expected one.")
        entry = msgspec.json.decode(next(iter(entries.values())), type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{name}: the header of the safetensors file cannot be read ({error}).") from None
    begin, end = entry.data_offsets
    shape = tuple(entry.shape)
    expected = math.prod(shape[:3]) * ITEM_BYTES.get(entry.dtype, 0)
    if len(shape) > 3 or end - begin != expected or start + end > len(data):
        raise CheckpointError(f"{name}: its tensor does not lie in the file as its header says. Is it complete?")
    strides = tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))
    return SentTensor(shape, strides, entry.dtype, start + begin, data)
