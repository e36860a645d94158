"""Tensorizer files, next to a configuration in Hugging Face's layout.

Owns: the calls of that library. Never does: hold more than a group of tensors in memory.
Called by: the engine's loading (`iter`), the command line (`resolve`, without torch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core_loaders.directory import read_directory
from core_loaders.extras import require
from core_loaders.reads import names_by_source, wanted_of
from core_loaders.tensorizer.arguments import TensorizerArguments
from core_loaders.tensorizer.index import read_index
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo
from core_tokens.checkpoint_files import inside

if TYPE_CHECKING:
    from torch import Tensor

GROUP_BYTES = 256 << 20
"""Bytes read at once: each of the library's objects keeps everything it has read."""


class TensorizerLoader:
    """Loader plugin over tensorizer."""

    def __init__(self, arguments: TensorizerArguments) -> None:
        self._arguments = arguments

    def resolve(self, ref: str) -> CheckpointManifest:
        """Read configuration and index; no torch, no weights. Raises CheckpointError, UserError."""
        require("tensorizer", "tensorizer", "--load-format tensorizer")
        directory = read_directory(ref)
        path = self._path(directory.path)
        return directory.manifest(ref, "tensorizer", [path], read_index(path))

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors in file order. Raises CheckpointError."""
        for group in _groups(wanted_of(manifest, reads)):
            yield from self._read(manifest.files[0], group)

    def _read(self, path: str, group: Sequence[TensorInfo]) -> Iterator[tuple[str, Tensor]]:
        from tensorizer import TensorDeserializer

        names = names_by_source(group)
        arguments = self._arguments
        try:
            with TensorDeserializer(
                path,
                device="cpu",
                filter_func=names.__contains__,
                lazy_load=True,
                num_readers=arguments.num_readers,
                verify_hash=arguments.verify_hash,
            ) as stored:
                for _, _, source, parameter in stored.read_tensors():
                    for name in names[source]:
                        yield name, parameter.detach()
        except Exception as error:  # the library's exceptions have no common base
            cause = f"{type(error).__name__}: {error}"
            raise CheckpointError(f"{path}: cannot be read ({cause}). Is it damaged or incomplete?") from error

    def _path(self, directory: Path) -> Path:
        """Return the file with the tensors. Raises CheckpointError."""
        named = self._arguments.tensorizer_uri
        if named is not None and "://" in named:
            raise CheckpointError(f"tensorizer_uri {named}: expected a path; copy the file to this machine first.")
        if named is not None:
            return directory / Path(named).expanduser()
        found = sorted(directory.glob("*.tensors"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise CheckpointError(
                f"{directory}: expected one *.tensors file beside config.json, found {names}; name it with "
                "--model-loader-extra-config.tensorizer_uri."
            )
        return inside(directory, found[0].name)


def _groups(wanted: Sequence[TensorInfo]) -> list[list[TensorInfo]]:
    """Group neighbouring tensors into about `GROUP_BYTES` each."""
    groups: list[list[TensorInfo]] = []
    held = GROUP_BYTES
    for info in wanted:
        if held + info.nbytes > GROUP_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(info)
        held += info.nbytes
    return groups
