"""The loader of GGUF files.

Owns: the way from a file to a manifest, and from a manifest to tensors in canonical row order and values.
Never does: unpack blocks. Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.api.checkpoint import CheckpointManifest, TensorInfo, Vocabulary
from core.api.errors import CheckpointError, nearest
from core_plugins.loaders.gguf.architectures import ARCHITECTURES, Architecture
from core_plugins.loaders.gguf.metadata import Metadata
from core_plugins.loaders.gguf.reader import open_map, read_header
from core_plugins.loaders.gguf.translate import find_architecture, translate_config, translate_tensors
from core_plugins.loaders.gguf.types import BY_NAME
from core_plugins.loaders.gguf.vocabulary import read_generation, read_tokenizer
from core_plugins.loaders.rotary_rows import half_split

if TYPE_CHECKING:
    from torch import Tensor


class GGUFLoader:
    """Kind `loader`: one GGUF file, or a directory that holds exactly one."""

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read header, configuration and tokenizer; no torch, no weights. Raises CheckpointError."""
        path = _find_file(ref)
        header = read_header(path)
        metadata = Metadata(path, header.metadata)
        if metadata.integer("split.count", 0, 65_535, 0) > 1:
            raise CheckpointError(f"{path}: is one part of a split model; merge the parts into one file first.")
        prefix, _ = find_architecture(metadata)
        config = translate_config(metadata, header.tensors)
        tensors = translate_tensors(path, prefix, config, header.tensors)
        tokenizer = read_tokenizer(metadata, config["vocab_size"])
        generation = read_generation(metadata, tokenizer.vocabulary)
        if tokenizer.vocabulary is not None:
            _add_special_tokens(config, tokenizer.vocabulary)
        return CheckpointManifest(
            ref=ref,
            format="gguf",
            files=[path],
            tensors=tensors,
            config=config,
            tokenizer=tokenizer,
            generation=generation,
        )

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors in file order: packed types as uint8 [N, row bytes], plain ones in dtype and shape.

        The pages of a tensor are given back to the system when the next one is drawn. Raises CheckpointError for an
        unknown name or a file that changed since `resolve`.
        """
        path = manifest.files[0]
        architecture = _architecture_of(manifest)
        for name in reads:
            if name not in manifest.tensors:
                raise CheckpointError(f"{path}: there is no tensor '{name}'.{nearest(name, manifest.tensors)}")
        data = open_map(path)
        wanted = [manifest.tensors[name] for name in set(reads)]
        wanted.sort(key=lambda info: info.offset)
        for info in wanted:
            end = info.offset + info.nbytes
            if end > len(data):
                raise CheckpointError(
                    f"{path}: tensor '{info.name}' ends after the file; was the file changed meanwhile?"
                )
            yield info.name, _canonical(_view(data, info), info, manifest, architecture)
            # From the start of the file: a page fault also maps neighbouring pages, some of tensors already given back.
            data.madvise(mmap.MADV_DONTNEED, 0, end)


def _architecture_of(manifest: CheckpointManifest) -> Architecture:
    """The row that `resolve` chose."""
    model_type = manifest.config["model_type"]
    return next(row for row in ARCHITECTURES.values() if row.model_type == model_type)


def _add_special_tokens(config: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Name the tokens that the vocabulary knows, as `config.json` does."""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(vocabulary, key)
        if token is not None:
            config[key] = token


def _find_file(ref: str) -> str:
    path = Path(ref).expanduser()
    if path.is_dir():
        models = sorted(path.glob("*.gguf"))
        if len(models) != 1:
            names = ", ".join(model.name for model in models) or "none"
            raise CheckpointError(
                f"{ref}: expected one .gguf file in the directory, found {names}. Name the file itself."
            )
        path = models[0]
    if not path.is_file():
        raise CheckpointError(f"{ref}: there is no such file; expected the path of a .gguf file.")
    return os.path.abspath(path)


def _view(data: mmap.mmap, info: TensorInfo) -> Tensor:
    """The tensor as it lies in the file, without a copy."""
    import torch

    raw = torch.frombuffer(data, dtype=torch.uint8, count=info.nbytes, offset=info.offset)
    if BY_NAME[info.dtype].packed:
        return raw.view(info.shape[0], -1)
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


def _canonical(tensor: Tensor, info: TensorInfo, manifest: CheckpointManifest, architecture: Architecture) -> Tensor:
    """Undo what the conversion to GGUF did to values and rows."""
    if architecture.norm_offset and info.name.endswith("norm.weight"):
        return tensor.float() - architecture.norm_offset
    if architecture.rotary_interleaved and ".self_attn.q_proj." in info.name:
        return half_split(tensor, manifest.config["num_attention_heads"])
    if architecture.rotary_interleaved and ".self_attn.k_proj." in info.name:
        return half_split(tensor, manifest.config["num_key_value_heads"])
    return tensor
