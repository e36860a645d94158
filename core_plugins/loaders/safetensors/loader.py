"""The loader of directories with config.json and safetensors files, one file or several.

Owns: the way from a directory to a manifest, and from a manifest to tensors. Never does: convert a value.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.api.checkpoint import CheckpointManifest, TensorInfo
from core.api.errors import CheckpointError, nearest
from core_plugins.loaders.directory import read_directory, read_json
from core_plugins.loaders.safetensors.header import read_tensors

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"


class SafetensorsLoader:
    """Kind `loader`."""

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read configuration and headers; no torch, no weights. Raises CheckpointError."""
        directory = read_directory(ref)
        files = _weight_files(directory.path)
        tensors: dict[str, TensorInfo] = {}
        metadata: dict[str, str] = {}
        for number, file in enumerate(files):
            own, about = read_tensors(file, number)
            metadata.update(about)
            for name, info in own.items():
                if name in tensors:
                    raise CheckpointError(f"{file}: tensor '{name}' is also in {files[tensors[name].file].name}.")
                tensors[name] = info
        return CheckpointManifest(
            ref=ref,
            format="safetensors",
            files=[str(file) for file in files],
            tensors=tensors,
            config=directory.config,
            tokenizer=directory.tokenizer,
            generation=directory.generation,
            metadata=metadata,
        )

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors file by file, in the order in which they lie there. Raises CheckpointError."""
        from safetensors import SafetensorError, safe_open

        for name in reads:
            if name not in manifest.tensors:
                raise CheckpointError(f"{manifest.ref}: there is no tensor '{name}'.{nearest(name, manifest.tensors)}")
        wanted = [manifest.tensors[name] for name in set(reads)]
        wanted.sort(key=lambda info: (info.file, info.offset))
        for number in dict.fromkeys(info.file for info in wanted):
            path = manifest.files[number]
            try:
                with safe_open(path, framework="pt") as stream:
                    for info in wanted:
                        if info.file == number:
                            yield info.name, stream.get_tensor(info.source)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path}: cannot be read ({error}).") from error


def _weight_files(directory: Path) -> list[Path]:
    """The files with weights: the ones that the index names, or all of the directory when there is no index."""
    index = directory / INDEX
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise CheckpointError(
                f"{directory}: there is no .safetensors file next to config.json. Is the download complete?"
            )
        return files
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(_is_file_name(name) for name in weights.values()):
        raise CheckpointError(f"{index}: has no weight_map from tensors to file names.")
    names = sorted(set(weights.values()))
    files = [directory / name for name in names]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing, though {INDEX} names it. Is the download complete?")
    return files


def _is_file_name(name: object) -> bool:
    """Whether it names a file of the same directory, and of no other."""
    return isinstance(name, str) and Path(name).name == name
