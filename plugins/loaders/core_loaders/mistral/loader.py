"""The loader of Mistral's own layout: consolidated safetensors files, and params.json.

Owns: the conversion of a directory to a manifest in Hugging Face's terms, and of a manifest to tensors.
Never does: know a tokenizer. Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.errors import CheckpointError
from core_loaders.directory import read_directory
from core_loaders.index import check_index, read_index
from core_loaders.mapped import TORCH_NAMES, Bytes, mapped_tensors, view
from core_loaders.mistral.names import canonical, is_turned
from core_loaders.mistral.params import translated
from core_loaders.rotary_rows import half_split
from core_loaders.safetensors.header import read_all
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo
from core_tokens.checkpoint_files import inside

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "consolidated.safetensors.index.json"
FILES = "consolidated*.safetensors"
EMBEDDING = "model.embed_tokens.weight"


class MistralLoader:
    """Loader plugin for Mistral's layout. strategy: see `core_loaders.mapped`."""

    def __init__(self, strategy: str | None = None) -> None:
        self._strategy = strategy

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read parameters and headers; no torch, no weights. Raises CheckpointError."""
        directory = read_directory(ref, "params.json", translated)
        index = read_index(directory.path / INDEX)
        names = sorted(set(index.values())) if index else [path.name for path in sorted(directory.path.glob(FILES))]
        if not names:
            raise CheckpointError(f"{ref}: there is no {FILES} next to params.json. Is the download complete?")
        files = [inside(directory.path, name) for name in names]
        stored = read_all(files).tensors
        check_index(directory.path / INDEX, index, files, stored)
        config = dict(directory.config)
        tensors = _canonical(files, stored, config)
        embedding = tensors.get(EMBEDDING)
        if embedding is not None and embedding.dtype in TORCH_NAMES:
            config["dtype"] = TORCH_NAMES[embedding.dtype]
        return directory._replace(config=config).manifest(ref, "mistral", files, tensors)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors in file order, with rows reordered from rotary pairs to halves. Raises CheckpointError."""
        for name, tensor in mapped_tensors(manifest, reads, self._strategy, _lying):
            yield name, _rotary(name, tensor, manifest.config)


def _canonical(files: Sequence[Path], stored: dict[str, TensorInfo], config: dict[str, Any]) -> dict[str, TensorInfo]:
    """Return the tensors by canonical name. Raises CheckpointError."""
    num_experts = config.get("num_local_experts", 0)
    tensors: dict[str, TensorInfo] = {}
    for info in stored.values():
        path = str(files[info.file])
        for part in canonical(path, info, num_experts):
            if part.name in tensors:
                other = tensors[part.name].source
                raise CheckpointError(f"{path}: both '{other}' and '{info.name}' are '{part.name}'.")
            _check_rows(path, part, config)
            tensors[part.name] = part
    return tensors


def _heads(name: str, config: dict[str, Any]) -> int:
    """Return the heads of a matrix whose outputs are rotated, 0 for others. name: of one of the matrix's tensors."""
    matrix, _, _ = name.rpartition(".")
    if matrix.endswith(".self_attn.q_proj"):
        return int(config["num_attention_heads"])
    if matrix.endswith(".self_attn.k_proj"):
        return int(config["num_key_value_heads"])
    return 0


def _check_rows(path: str, info: TensorInfo, config: dict[str, Any]) -> None:
    """Check that a tensor of a rotated matrix has a row per output, or describes the whole matrix. Raises
    CheckpointError.
    """
    heads = _heads(info.name, config)
    is_whole = math.prod(info.shape) == 1 or info.name.endswith(".weight_shape")
    if not heads or (is_whole and not info.name.endswith(".weight")):
        return
    if info.shape[:1] != (heads * config["head_dim"],):
        raise CheckpointError(
            f"{path}: tensor '{info.source}' has shape {list(info.shape)}; params.json says {heads} heads of "
            f"{config['head_dim']}."
        )


def _lying(data: Bytes, info: TensorInfo) -> Tensor:
    """Return the stored tensor, transposed back where the file stores it transposed."""
    if not is_turned(info):
        return view(data, info)
    lying = msgspec.structs.replace(info, shape=info.shape[::-1])
    return view(data, lying).t()


def _rotary(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Return the tensor with its rows reordered from rotary pairs to halves, where it has a row per output."""
    heads = _heads(name, config)
    has_rows = heads and tensor.dim() == 2 and tensor.shape[0] == heads * config["head_dim"]
    return half_split(tensor, heads) if has_rows else tensor
