"""The weights of a worker: given back while the engine sleeps, brought back, and replaced by newer ones.

Owns: which parts of the memory are there, the sources of the weights, and the order of each change. Never does: schedule, count
requests, or build a model (the worker does). Called by: the engine between two steps, in the thread that computes them.

A change happens whole or not at all: new models are built beside those that compute, and take their place when they are done.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import msgspec

from core.api.checkpoint import ITEM_BYTES, CheckpointManifest, TensorInfo
from core.api.errors import CheckpointError, UserError
from core.api.weights import MemoryPart, TensorPlace, WeightSource, WeightsState, WeightUpdate
from core.executor.host_memory import release_dropped_models, release_unused_memory, set_aside, trim_memory
from core.executor.instance import Checkpoint, ModelInstance
from core.executor.kept_tensors import DTYPES, shared_memory
from core.executor.overlay import (
    check_fit,
    check_same_shape,
    check_unchanged,
    file_states,
    known_states,
    resolve_source,
)
from core.executor.spilled_weights import SpilledWeights
from core.executor.worker import Worker
from core.models.prepared import HasPrepared
from core.plugin.contracts import Loader

PARTS: Final[frozenset[MemoryPart]] = frozenset(get_args(MemoryPart))
DTYPE_NAMES: Final = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}
"""Types of manifests by torch's names."""


class Reloader:
    """state: of the weights, which a worker that sleeps will have when it is woken."""

    def __init__(self, worker: Worker) -> None:
        self.state = worker.config.weights
        self._worker = worker
        self._missing: set[MemoryPart] = set()
        self._base_files = known_states(worker.base_files)
        self._checkpoint: Checkpoint | None = None  # opened while the engine sleeps, so that it wakes sooner

    def release(self, level: int) -> None:
        """Give weights, cache and device back.

        level: 1 writes the prepared weights to a file first, 2 drops them.
        Raises OSError when they cannot be written, CheckpointError when they could not be read again; then nothing has changed.
        """
        worker = self._worker
        checkpoint = None if worker.is_foreign else worker.open_checkpoint(self.state)
        spilled = worker.spilled
        if spilled is not None:
            if level == 1:
                spilled.write()
            else:
                spilled.close()
            spilled.forget_kernels()
        self._checkpoint = checkpoint
        worker.drop_models()
        self._missing = set(PARTS)
        release_dropped_models()

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        """Bring parts back; the cache, whose size follows from the models, not before the weights are there.

        Raises CheckpointError when the weights cannot be read; then they are still missing.
        """
        worker = self._worker
        wanted = self._missing & set(parts)
        left = self._missing - wanted
        if "weights" in wanted:
            worker.open_device()
            try:
                worker.instances = self._built()
            except BaseException:
                worker.runtime.close()
                raise
        if worker.instances and "kv_cache" not in left:
            worker.allocate_cache()
        self._missing = left
        set_aside()

    def stage(self, update: WeightUpdate) -> WeightSource:
        """Check an update against the weights, and copy what cannot be read again. Nothing changes yet.

        Raises UserError, which says what does not fit; OSError when there is no memory for copies.
        """
        if (update.path is None) == (update.shared_memory is None):
            raise UserError("weight update: expected either `path` or `shared_memory`.")
        loader, base = self._opened()
        if update.path is not None:
            if update.tensors:
                raise UserError("weight update: `tensors` describes shared memory; with `path` give `names`.")
            return _from_files(loader, base, update.path, update.names)
        assert update.shared_memory is not None
        if update.names is not None:
            raise UserError("weight update: `names` chooses from a checkpoint; with `shared_memory` give `tensors`.")
        return self._from_memory(base, update.shared_memory, update.tensors)

    def discard(self, source: WeightSource) -> None:
        """A staged update will not be applied."""
        self._worker.kept_tensors.drop(source.kept)

    def apply(self, sources: Sequence[WeightSource], version: str | None) -> None:
        """Compute with staged updates from now on, or once the weights are woken.

        version: None: the number of the update.
        Raises UserError when the weights cannot be used; then nothing has changed.
        """
        number = self.state.number + 1
        together, replaced = _compact([*self.state.sources, *sources])
        state = WeightsState(version=version or str(number), number=number, sources=together)
        self._use(state)
        self._worker.kept_tensors.drop(replaced)

    def reload(self) -> None:
        """Read all weights again, as their files are now."""
        fresh: list[WeightSource] = []
        for source in self.state.sources:
            files = file_states([file.path for file in source.files])
            fresh.append(msgspec.structs.replace(source, files=files))
        before = self._base_files
        self._base_files = known_states(self._worker.base_files)
        number = self.state.number
        version = self.state.version
        if (tuple(fresh), self._base_files) != (self.state.sources, before):
            number += 1
            version = str(number)
        try:
            self._use(WeightsState(version=version, number=number, sources=tuple(fresh)))
        except BaseException:
            self._base_files = before
            raise

    def _use(self, state: WeightsState) -> None:
        """Compute with these weights from now on, or once the weights are woken. Raises UserError; then nothing has changed."""
        worker = self._worker
        config = worker.config
        before = worker.spilled
        fresh = None if before is None else SpilledWeights(config)
        if "weights" not in self._missing:
            checkpoint = worker.open_checkpoint(state)
            instances = worker.build_models(checkpoint, None if fresh is None else fresh.note)
            if "kv_cache" in self._missing:
                worker.instances = instances
            else:
                worker.use_models(instances)
            del instances
        if before is not None:
            before.forget_kernels()
            before.close()
        worker.spilled = fresh
        self.state = state
        self._checkpoint = None
        release_dropped_models()

    def _built(self) -> list[ModelInstance]:
        """The models, from what was written when they went, or from the checkpoint."""
        worker = self._worker
        spilled = worker.spilled
        self._check_base()
        for source in self.state.sources:
            check_unchanged(source.files)
        checkpoint = self._checkpoint or worker.open_checkpoint(self.state)
        prepared = None if spilled is None or checkpoint.prepared is not None else spilled.find()
        if prepared is not None:
            models = worker.build_models(dataclasses.replace(checkpoint, prepared=prepared), None)
            trim_memory()
        else:
            models = worker.build_models(checkpoint, None if spilled is None else spilled.note)
            release_unused_memory()
        self._checkpoint = None
        return models

    def _opened(self) -> tuple[Loader, CheckpointManifest]:
        """The checkpoint's own loader, and its tensors as they are now. Raises UserError where none can be replaced."""
        worker = self._worker
        loader = worker.open_loader(WeightsState())
        model = worker.config.model.model
        if isinstance(loader, HasPrepared):
            raise UserError(
                f"weight update: {model} is a converted model; start the engine with the checkpoint itself."
            )
        return loader, worker.open_loader(self.state).resolve(model)

    def _check_base(self) -> None:
        """The checkpoint's files are as they were, unless no tensor of them is read any more. Raises CheckpointError."""
        if known_states(self._worker.base_files) == self._base_files:
            return
        replaced: set[str] = set()
        for source in self.state.sources:
            replaced.update(source.names)
        loader = self._worker.open_loader(WeightsState())
        manifest = loader.resolve(self._worker.config.model.model)
        if not replaced.issuperset(manifest.tensors):
            check_unchanged(self._base_files)

    def _from_memory(self, base: CheckpointManifest, name: str, tensors: Sequence[TensorPlace]) -> WeightSource:
        ref = f"shared memory {name}"
        try:
            memory = shared_memory(name)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"{ref}: cannot be read ({reason}).") from None
        wanted: dict[str, TensorInfo] = {}
        for place in tensors:
            if place.name in wanted:
                raise UserError(f"{ref}: tensor '{place.name}' is named twice. Nothing was changed.")
            wanted[place.name] = _placed(place, base)
        check_fit(base, wanted, ref)
        for info in wanted.values():
            end = info.offset + info.nbytes
            if end > len(memory):
                raise UserError(
                    f"{ref}: tensor '{info.name}' ends at byte {end} of {len(memory)}. Nothing was changed."
                )
        kept, digest = self._worker.kept_tensors.keep(memory, list(wanted.values()))
        return WeightSource(names=tuple(wanted), kept=kept, digest=digest)


def _from_files(loader: Loader, base: CheckpointManifest, path: str, names: Sequence[str] | None) -> WeightSource:
    absolute = str(Path(path).expanduser().absolute())
    found = resolve_source(loader, absolute)
    check_same_shape(base, found)
    for name in names or ():
        if name not in found.tensors:
            raise CheckpointError(f"{path}: has no tensor '{name}'. Nothing was changed.")
    chosen = tuple(found.tensors) if names is None else tuple(dict.fromkeys(names))
    check_fit(base, {name: found.tensors[name] for name in chosen}, path)
    return WeightSource(path=absolute, names=chosen, files=file_states(found.files))


def _placed(place: TensorPlace, base: CheckpointManifest) -> TensorInfo:
    """A tensor of shared memory; one of a packed type has as many bytes as the one that it replaces."""
    dtype = DTYPE_NAMES.get(place.dtype, place.dtype)
    shape = tuple(place.shape)
    known = base.tensors.get(place.name)
    nbytes = 0 if known is None else known.nbytes
    if dtype in ITEM_BYTES:
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    return TensorInfo(place.name, shape, dtype, nbytes, 0, place.offset, place.name)


def _compact(sources: Sequence[WeightSource]) -> tuple[tuple[WeightSource, ...], list[TensorInfo]]:
    """The same without tensors that later ones replace; of the kept ones, those that are needed no more."""
    together: list[WeightSource] = []
    replaced: list[TensorInfo] = []
    newer: set[str] = set()
    for source in reversed(sources):
        names = tuple(name for name in source.names if name not in newer)
        kept = tuple(info for info in source.kept if info.name not in newer)
        replaced += [info for info in source.kept if info.name in newer]
        newer.update(names)
        if names:
            together.append(msgspec.structs.replace(source, names=names, kept=kept))
    together.reverse()
    return tuple(together), replaced
