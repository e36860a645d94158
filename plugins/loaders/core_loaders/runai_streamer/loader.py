"""Safetensors files through the Run:ai model streamer: several threads fill a buffer of limited size.

Owns: the calls of that library. Never does: read headers (the loader of the layout does).
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core_loaders.extras import require
from core_loaders.reads import names_by_source, wanted_of
from core_loaders.runai_streamer.arguments import StreamerArguments
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.contracts import Loader


class RunaiStreamerLoader:
    """Loader plugin over the streamer. layout: the loader that lists the files and reads their headers."""

    def __init__(self, arguments: StreamerArguments, layout: Loader | None = None) -> None:
        self._arguments = arguments
        self._layout = layout or SafetensorsLoader()

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read configuration and headers; no torch, no weights. Raises CheckpointError, UserError."""
        require("runai_model_streamer", "runai-streamer", "--load-format runai_streamer")
        return self._layout.resolve(ref)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors in the order in which the streamer delivers them. Raises CheckpointError."""
        from runai_model_streamer import SafetensorsStreamer

        wanted = wanted_of(manifest, reads)
        if not wanted:
            return
        names = names_by_source(wanted)
        paths = [manifest.files[number] for number in dict.fromkeys(info.file for info in wanted)]
        with _environment(self._variables()), SafetensorsStreamer() as streamer:
            try:
                streamer.stream_files(paths, tensor_names=list(names))
                coming = streamer.get_tensors()
            except Exception as error:
                raise _failure(paths, error) from error
            while True:
                try:
                    source, tensor = next(coming)
                except StopIteration:
                    return
                except Exception as error:
                    raise _failure(paths, error) from error
                for name in names[source]:
                    yield name, tensor

    def _variables(self) -> dict[str, str]:
        """Return the arguments as the library's environment variables."""
        arguments = self._arguments
        given = {
            "RUNAI_STREAMER_CONCURRENCY": arguments.concurrency,
            "RUNAI_STREAMER_MEMORY_LIMIT": arguments.memory_limit,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the context: the library has no other interface for them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _failure(paths: Sequence[str], error: Exception) -> CheckpointError:
    return CheckpointError(f"{', '.join(paths)}: cannot be read ({error}).")
