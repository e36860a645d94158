"""Safetensors files through fastsafetensors: a file at a time is copied into memory by several threads.

Owns: the calls of that library. Never does: read headers (the safetensors loader's `resolve` does), use GPU direct storage.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core_loaders.extras import require
from core_loaders.fastsafetensors.arguments import FastArguments
from core_loaders.reads import wanted_of
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor


class FastSafetensorsLoader:
    """Loader plugin over fastsafetensors."""

    def __init__(self, arguments: FastArguments) -> None:
        self._arguments = arguments

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read the configuration and headers; no torch, no weights. Raises CheckpointError, UserError."""
        require("fastsafetensors", "fastsafetensors", "--load-format fastsafetensors")
        return SafetensorsLoader().resolve(ref)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors file by file, in the order of their offsets. Raises CheckpointError."""
        wanted = wanted_of(manifest, reads)
        for number in dict.fromkeys(info.file for info in wanted):
            inside = [info for info in wanted if info.file == number]
            yield from self._file(manifest.files[number], inside)

    def _file(self, path: str, wanted: Sequence[TensorInfo]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of one file, whose memory is freed before the next file is read."""
        from fastsafetensors import SafeTensorsFileLoader

        arguments = self._arguments
        sources = {info.source for info in wanted}
        loader = SafeTensorsFileLoader(
            None,
            "cpu",
            bbuf_size_kb=arguments.bbuf_size_kb,
            max_threads=arguments.max_threads,
            nogds=True,
            set_numa=False,
        )
        try:
            try:
                loader.set_tensor_filter(sources.__contains__)
                loader.add_filenames({0: [path]})
                copied = loader.copy_files_to_device()
            except Exception as error:
                raise CheckpointError(f"{path}: cannot be read ({error}).") from error
            try:
                for info in wanted:
                    yield info.name, copied.get_tensor(info.source)
            finally:
                copied.close()
        finally:
            loader.close()
