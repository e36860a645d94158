"""The tensors of a model as a chain of sources: updates, the newest first, and the checkpoint last.

Owns: where each tensor is read now, and whether that place has changed. Never does: choose what is replaced, or build a model.
Called by: the worker (opens a checkpoint through it), the reloader (checks updates and files).

It works below canonical names: tensors have the names that the checkpoint's own loader gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from torch import Tensor

from core.api.weights import FileState, WeightSource, WeightsState
from core_runtime.contracts import keeps_tensors
from core_runtime.executor.reloading.file_states import check_unchanged
from core_runtime.executor.reloading.memory_tensors import KeptTensors
from core_runtime.executor.reloading.remembered_loader import RememberedLoader
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo


class TensorSource(NamedTuple):
    """One place of tensors.

    tensors: their descriptions, by name.
    read:    yields named tensors, each valid until the next one is drawn.
    files:   states of the files that they lie in, when they were taken into use; empty where there are none.
    """

    tensors: Mapping[str, TensorInfo]
    read: Callable[[Sequence[str]], Iterator[tuple[str, Tensor]]]
    files: Sequence[FileState] = ()


class WeightChain:
    """The sources of one state of the weights, as a `Loader`. The first source that has a name gives its tensor.

    loader, ref: the checkpoint, and what reads it.
    base_files: states of the checkpoint's files when they were taken into use; empty: they are taken as they are.
    manifest: the checkpoint's, with the newest description of each tensor.
    Raises CheckpointError when the files of an update have changed.
    """

    def __init__(
        self,
        loader: RememberedLoader,
        ref: str,
        state: WeightsState,
        store: KeptTensors,
        base_files: Sequence[FileState] = (),
    ) -> None:
        checkpoint = loader.resolve(ref)
        sources = [TensorSource(checkpoint.tensors, partial(loader.inner.iter, checkpoint), base_files)]
        sources += [_source_of(update, loader, store) for update in state.sources]
        tensors: dict[str, TensorInfo] = {}
        for source in sources:
            tensors.update(source.tensors)
        self._newest_first = sources[::-1]
        self.keeps_tensors = keeps_tensors(loader.inner)  # so are tensors of updates, until others replace them
        self.manifest = msgspec.structs.replace(checkpoint, tensors=tensors)

    def resolve(self, ref: str) -> CheckpointManifest:
        """Return the manifest of the chain."""
        return self.manifest

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors, each once and from its newest source."""
        left = list(dict.fromkeys(reads))
        *updates, checkpoint = self._newest_first
        for source in updates:
            own = [name for name in left if name in source.tensors]
            left = [name for name in left if name not in source.tensors]
            if own:
                yield from source.read(own)
        # With everything that is left: the checkpoint's loader refuses names that nothing has.
        yield from checkpoint.read(left)

    def check(self) -> None:
        """Raise CheckpointError if a file that a tensor is taken from has changed."""
        newer: set[str] = set()
        for source in self._newest_first:
            if not newer.issuperset(source.tensors):
                check_unchanged(source.files)
            newer.update(source.tensors)


def _source_of(update: WeightSource, loader: RememberedLoader, store: KeptTensors) -> TensorSource:
    if not update.path:
        kept = {info.name: info for info in update.kept}
        return TensorSource(kept, lambda names: ((name, store.read(kept[name])) for name in names))
    # Otherwise the weights would silently become those of another version.
    check_unchanged(update.files)
    found = loader.resolve(update.path, update=True)
    tensors = {name: found.tensors[name] for name in update.names}
    return TensorSource(tensors, partial(loader.inner.iter, found), update.files)
