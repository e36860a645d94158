"""The loader of GGUF files.

Owns: the conversion of files to a manifest, and of a manifest to tensors in canonical row order and values.
Never does: unpack blocks, except for the one matrix of latent attention that is stored transposed.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.api.errors import CheckpointError, UserError, nearest
from core_loaders.gguf import layout
from core_loaders.gguf.architectures import Architecture
from core_loaders.gguf.arguments import GGUFArguments
from core_loaders.gguf.metadata import Metadata
from core_loaders.gguf.placement import JOINT, UNFOLDED, Placement
from core_loaders.gguf.pooling import pooling_kind
from core_loaders.gguf.projectors.attach import attach
from core_loaders.gguf.projectors.values import tower_tensor
from core_loaders.gguf.reader import GGUFTensor, open_map, read_architecture, read_header
from core_loaders.gguf.source import Source
from core_loaders.gguf.split import find_file, read_parts
from core_loaders.gguf.translate import drafting_layers, find_architecture, translate_config
from core_loaders.gguf.types import BY_NAME
from core_loaders.gguf.vocabulary import read_generation, read_tokenizer
from core_loaders.rotary_rows import half_split
from core_runtime.models.families import decoder_spec
from core_runtime.models.families.wrappers import PROJECTOR, text_config
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, Vocabulary
from core_runtime.specs.decoder_spec import DecoderSpec

if TYPE_CHECKING:
    from torch import Tensor


class GGUFLoader:
    """Loader plugin for GGUF: one file, the parts of a split one, or a directory that holds exactly one model."""

    keeps_tensors = True

    def __init__(self, arguments: GGUFArguments | None = None) -> None:
        self._projector = "" if arguments is None else arguments.mmproj

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read headers, configuration and tokenizer; no torch, no weights. Raises CheckpointError."""
        path = find_file(ref)
        parts = read_parts(path)
        metadata = Metadata(parts.files[0], parts.headers[0].metadata)
        prefix = metadata.text("general.architecture")
        row = find_architecture(metadata.path, prefix)
        tensors = [tensor for header in parts.headers for tensor in header.tensors]
        source = Source(metadata, prefix, tensors)
        config = translate_config(source, row)
        spec = _spec_of(metadata.path, config)
        placement = Placement(
            path=metadata.path,
            prefix=prefix,
            own=row.names_in(source),
            shapes=spec.tensor_shapes(),
            num_layers=len(spec.blocks),
            drafting=drafting_layers(source),
        )
        placed = placement.run([header.tensors for header in parts.headers])
        tokenizer = read_tokenizer(metadata, config["vocab_size"])
        generation = read_generation(metadata, tokenizer.vocabulary)
        if tokenizer.vocabulary is not None:
            _add_special_tokens(config, tokenizer.vocabulary)
        manifest = CheckpointManifest(
            ref=ref,
            format="gguf",
            files=parts.files,
            tensors=placed,
            config=config,
            tokenizer=tokenizer,
            generation=generation,
            pooling=pooling_kind(source),
        )
        return attach(manifest, os.path.abspath(self._projector)) if self._projector else manifest

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors in file order: packed types as uint8 [N, row bytes], plain ones in dtype and shape.

        The pages of a tensor are returned to the system when the next tensor is requested. Raises CheckpointError for
        an unknown name or a file that changed since `resolve`.
        """
        path = manifest.files[0]
        for name in reads:
            if name not in manifest.tensors:
                raise CheckpointError(f"{path}: there is no tensor '{name}'.{nearest(name, manifest.tensors)}")
        reader = _Reader(manifest)
        wanted = [manifest.tensors[name] for name in set(reads)]
        wanted.sort(key=lambda info: (info.file, info.offset))
        for info in wanted:
            yield info.name, reader.read(info)
            reader.give_back(info)


class _Reader:
    """The mapped files of one model, and the conversion of their bytes to canonical tensors."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        self.manifest = manifest
        self.row = find_architecture(manifest.files[0], read_architecture(manifest.files[0]))
        self._tower_file = len(manifest.files) - 1 if PROJECTOR in manifest.config else None
        self._maps: dict[int, mmap.mmap] = {}
        self._tensors: dict[str, tuple[int, GGUFTensor]] = {}

    def read(self, info: TensorInfo) -> Tensor:
        """Return one canonical tensor. Raises CheckpointError when its file has changed."""
        if info.file == self._tower_file:
            return tower_tensor(info, self.manifest.config, self._tower_part)
        names = info.source.split(JOINT)
        if len(names) == 1:
            return _canonical(self._view(info), info, self.manifest, self.row)
        parts = [self._whole(name) for name in names]
        if info.name.endswith(f"{UNFOLDED}.weight"):
            return self._unfolded(parts, info)
        import torch

        joined = torch.cat([self._view(part) for part in parts])
        return _canonical(joined, info, self.manifest, self.row)

    def give_back(self, info: TensorInfo) -> None:
        """Return the pages of a tensor to the system."""
        # From the start of the file: a page fault also maps neighbouring pages, some of them of tensors already
        # released.
        self._maps[info.file].madvise(mmap.MADV_DONTNEED, 0, info.offset + info.nbytes)

    def _whole(self, name: str) -> TensorInfo:
        """Return a tensor of the files by its own name. Only joined tensors need this, so headers are read lazily."""
        if not self._tensors:
            for file, path in enumerate(self.manifest.files):
                for tensor in read_header(path).tensors:
                    self._tensors[tensor.name] = file, tensor
        file, tensor = self._tensors[name]
        return TensorInfo(name, tensor.shape, tensor.type.name, tensor.nbytes, file, tensor.offset, name)

    def _unfolded(self, parts: list[TensorInfo], info: TensorInfo) -> Tensor:
        """Join the halves as float32, whatever their types are."""
        halves = [self._floats(part) for part in parts]
        return layout.unfolded(*halves).reshape(info.shape)

    def _tower_part(self, name: str) -> Tensor:
        """Return a tensor of the projector file, unpacked."""
        info = self._whole(name)
        return self._floats(info) if BY_NAME[info.dtype].packed else self._view(info)

    def _floats(self, info: TensorInfo) -> Tensor:
        raw = self._view(info)
        if not BY_NAME[info.dtype].packed:
            return raw.float()
        from core_quantization.gguf.method import dequantized

        return dequantized(raw, info.dtype, info.shape[-1]).view(info.shape)

    def _view(self, info: TensorInfo) -> Tensor:
        """Return the stored bytes without a copy."""
        import torch

        data = self._map(info.file)
        end = info.offset + info.nbytes
        if end > len(data):
            raise CheckpointError(
                f"{self.manifest.files[info.file]}: tensor '{info.name}' ends after the file; was the file changed meanwhile?"
            )
        raw = torch.frombuffer(data, dtype=torch.uint8, count=info.nbytes, offset=info.offset)
        kind = BY_NAME[info.dtype]
        if kind.packed:
            row_bytes = info.shape[-1] // kind.block_size * kind.block_bytes
            return raw.view(-1, row_bytes)
        plain = {
            "F64": torch.float64,
            "F32": torch.float32,
            "F16": torch.float16,
            "BF16": torch.bfloat16,
            "I8": torch.int8,
            "I16": torch.int16,
            "I32": torch.int32,
            "I64": torch.int64,
        }
        return raw.view(plain[info.dtype]).view(info.shape)

    def _map(self, file: int) -> mmap.mmap:
        if file not in self._maps:
            self._maps[file] = open_map(self.manifest.files[file])
        return self._maps[file]


def _spec_of(path: str, config: dict[str, Any]) -> DecoderSpec:
    """Return the model described by a configuration. Raises CheckpointError naming the file."""
    try:
        return decoder_spec(config)
    except UserError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _add_special_tokens(config: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Add the vocabulary's special tokens to the configuration, under the names of `config.json`."""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(vocabulary, key)
        if token is not None:
            config[key] = token


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of query heads and key heads, under any of the names that configurations use."""
    heads = config.get("num_attention_heads") or config["n_head"]
    if "num_kv_heads" in config:
        return heads, config["num_kv_heads"]
    return heads, config.get("num_key_value_heads", heads)


def _canonical(tensor: Tensor, info: TensorInfo, manifest: CheckpointManifest, row: Architecture) -> Tensor:
    """Undo the changes that the conversion to GGUF made to values and rows."""
    text = text_config(manifest.config)
    if row.norm_offset and info.name.endswith("norm.weight"):
        return tensor.float() - row.norm_offset
    if info.name.endswith(".mixer.A_log"):
        return (-tensor.float()).log()
    if row.paired and ".self_attn.q_proj." in info.name:
        return half_split(tensor, text["num_attention_heads"])
    if row.paired and ".self_attn.k_proj." in info.name:
        return half_split(tensor, text["num_key_value_heads"])
    if row.grouped and ".self_attn.qkv_proj." in info.name:
        return layout.by_group(tensor, *_heads(text))
    return tensor
