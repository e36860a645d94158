"""Adapters in GGUF files: `general.type` is `adapter`, and each changed tensor has a `.lora_a` and a `.lora_b`.

Owns: the meaning of the file's names and keys. Never does: know the model. Called by: the executor's reading of adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from core.api.errors import CheckpointError, UserError
from core_adapters.files import digest_of
from core_adapters.room import check_room
from core_loaders.gguf.architectures import Architecture
from core_loaders.gguf.metadata import Metadata
from core_loaders.gguf.names import canonical_name
from core_loaders.gguf.reader import GGUFTensor, open_map, read_header
from core_loaders.gguf.source import Source
from core_loaders.gguf.translate import find_architecture
from core_quantization.gguf.method import dequantized
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange

PACKED: Final = "Q8_0"
"""The one packed type that the converter writes."""
PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ENDINGS: Final = {".lora_a": "a", ".lora_b": "b"}
EMBEDDING: Final = "model.embed_tokens"
NORMS: Final = ("norm.weight", "norm.bias")
"""Endings of the canonical names of norms, which such a file may replace."""
READ: Final = (
    "general.type",
    "general.architecture",
    "adapter.type",
    "adapter.lora.alpha",
    "adapter.alora.invocation_tokens",
)


class GGUFFormat:
    """The format plugin."""

    def claims(self, path: str) -> bool:
        """Whether it is a GGUF file of an adapter."""
        if not Path(path).is_file():  # opening a pipe would wait for whoever writes into it
            return False
        try:
            return read_header(path).metadata.get("general.type") == "adapter"
        except CheckpointError:
            return False

    def read(self, path: str) -> AdapterContents:
        """Read an adapter. Raises UserError, in one sentence, when it cannot be used as it is."""
        header = read_header(path)
        check_room(path, sum(tensor.nbytes for tensor in header.tensors))
        metadata = header.metadata
        kind = metadata.get("adapter.type")
        if kind != "lora":
            raise UserError(f"{path}: adapter.type is {kind!r}; adapters of type 'lora' are served.")
        unknown = [key for key in metadata if key.startswith("adapter.") and key not in READ]
        if unknown:
            raise UserError(f"{path}: the key '{unknown[0]}' is unknown, so the answers could be wrong.")
        alpha = metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise UserError(f"{path}: adapter.lora.alpha is {alpha!r}, expected a number.")
        tokens = metadata.get("adapter.alora.invocation_tokens") or ()
        name = str(metadata.get("general.architecture"))
        row = find_architecture(path, name)
        tensors = dict(_tensors(path, header.tensors))
        source = Source(Metadata(path, metadata), name, header.tensors)
        used: dict[str, Any] = {"architecture": name, "alpha": alpha, "invocation": list(tokens)}
        changes = tuple(_changes(path, tensors, row, source, float(alpha)))
        return AdapterContents(digest_of(used, tensors), changes, tuple(tokens))


def _tensors(path: str, listed: list[GGUFTensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield a copy of each tensor, unpacked; the header's reading has checked their places. Raises CheckpointError."""
    data = open_map(path)
    for tensor in listed:
        dtype = PLAIN.get(tensor.type.name)
        if dtype is None and tensor.type.name == PACKED and tensor.nbytes:
            flat = torch.frombuffer(data, dtype=torch.uint8, count=tensor.nbytes, offset=tensor.offset)
            width = tensor.shape[-1]
            rows = flat.view(math.prod(tensor.shape) // width, -1)
            yield tensor.name, dequantized(rows, PACKED, width).reshape(tensor.shape).clone()
            continue
        if dtype is None:
            raise CheckpointError(
                f"{path}: tensor '{tensor.name}' has type {tensor.type.name}; adapters are served in "
                f"{', '.join((*PLAIN, PACKED))}."
            )
        count = tensor.nbytes // dtype.itemsize
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=tensor.offset) if count else torch.empty(0)
        yield tensor.name, flat.view(tensor.shape).clone()


def _changes(
    path: str, tensors: Mapping[str, Tensor], row: Architecture, source: Source, alpha: float
) -> Iterator[ModuleChange]:
    """Yield the change of each module, from pairs of tensors, and norms, which mergekit extracts whole.

    alpha: 0.0: the scale is 1.
    """
    pairs: dict[str, dict[str, Tensor]] = {}
    norms: dict[str, dict[str, Tensor]] = {}
    own = row.names_in(source)
    for name, tensor in tensors.items():
        whole = canonical_name(name, own)
        if whole is not None and whole.endswith(NORMS):
            module, _, field = whole.rpartition(".")
            norms.setdefault(module, {})[field] = tensor - row.norm_offset if field == "weight" else tensor
            continue
        ending = name[-len(".lora_a") :]
        if ending not in ENDINGS:
            raise UserError(
                f"{path}: tensor '{name}' is of no kind that adapters have; expected .lora_a, .lora_b, or the weight of a norm."
            )
        pairs.setdefault(name.removesuffix(ending), {})[ENDINGS[ending]] = tensor
    for module, found in norms.items():
        yield ModuleChange(module, **found)
    for name, found in pairs.items():
        canonical = canonical_name(name, own)
        if canonical is None or not canonical.endswith(".weight"):
            raise UserError(f"{path}: '{name}' is no matrix of the architecture '{source.prefix}'.")
        if len(found) < len(ENDINGS):
            raise UserError(f"{path}: '{name}' has only one of its two matrices; the file is incomplete.")
        module = canonical.removesuffix(".weight")
        # The factor of an embedding that a token chooses is stored by token, so that the token's row can be taken.
        a = found["a"].T if module == EMBEDDING and found["a"].dim() == 2 else found["a"]
        yield from _of_module(path, module, a, found["b"], alpha, row)


def _of_module(path: str, module: str, a: Tensor, b: Tensor, alpha: float, row: Architecture) -> Iterator[ModuleChange]:
    """Yield the change of a module; of each expert where the module stacks all of them."""
    stacked = "*" in module
    if a.dim() != (3 if stacked else 2) or b.dim() != a.dim() or a.shape[-2] != b.shape[-1] or len(a) == 0:
        raise UserError(f"{path}: the matrices of {module} have the shapes {list(a.shape)} and {list(b.shape)}.")
    scale = alpha / a.shape[-2] if alpha else 1.0
    if not stacked:
        turns = row.paired and module.endswith(("self_attn.q_proj", "self_attn.k_proj"))
        parted = row.grouped and module.endswith("self_attn.qkv_proj")
        yield ModuleChange(module, a, b, scale, paired=turns, parted=parted)
        return
    for expert, (one, other) in enumerate(zip(a, b, strict=True)):
        yield ModuleChange(module.replace("*", str(expert)), one, other, scale)
