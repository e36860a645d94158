"""Changes of a worker's weights: released while the engine sleeps, restored, and replaced by newer ones.

Owns: which parts of the memory are present, the sources of the weights, and the order of each change. Never does:
schedule, count requests, or build a model (the worker does). Called by: the engine between two steps, in the thread
that computes them.

A change happens completely or not at all: new models are built while the old ones still serve, and
replace them when they are complete. Both share the parts whose tensors have not changed.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Sequence, Set
from typing import Final, get_args

import msgspec

from core.api.errors import EngineDeadError, UserError
from core.api.weights import MemoryPart, WeightSource, WeightsState, WeightUpdate
from core_runtime.executor.host_memory import release_dropped_models, release_unused_memory, set_aside, trim_memory
from core_runtime.executor.instance import ModelInstance
from core_runtime.executor.reloading.building import Stores
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.executor.reloading.file_states import file_states, known_states
from core_runtime.executor.reloading.remembered_loader import RememberedLoader
from core_runtime.executor.reloading.weight_sources import compacted, source_of
from core_runtime.executor.saved_weights import SpilledWeights
from core_runtime.executor.weight_chain import WeightChain
from core_runtime.executor.worker import Worker
from core_runtime.models.tensors.prepared import HasPrepared
from core_runtime.specs.checkpoint import TensorInfo

logger = logging.getLogger(__name__)

PARTS: Final[frozenset[MemoryPart]] = frozenset(get_args(MemoryPart))

Opened = tuple[WeightChain, Checkpoint]


class Reloader:
    """Releases, restores and replaces the weights of one worker. Owned by the executor.

    state: state of the weights; a sleeping worker will have it once it is woken.
    """

    def __init__(self, worker: Worker) -> None:
        self.state = worker.config.weights
        self._worker = worker
        self._missing: set[MemoryPart] = set()
        self._base_files = known_states(worker.base_files)
        self._loader: RememberedLoader | None = None  # set by the first update
        self._opened: Opened | None = None  # opened before the engine sleeps, so that it wakes sooner

    def release(self, level: int) -> None:
        """Release weights, cache and device.

        level: 1 writes the prepared weights to a file first, 2 drops them.
        Raises OSError when they cannot be written, CheckpointError when they could not be read again; nothing has
        changed then.
        """
        worker = self._worker
        if "weights" in self._missing:  # the cache is allocated with them
            self._missing = set(PARTS)
            return
        # Opened before anything is released: an error must leave the engine as it was.
        opened = None
        if not worker.is_foreign:
            chain = self._chain(self.state)
            opened = chain, worker.open_checkpoint(chain)
        saved = worker.saved
        if saved is not None:
            if level == 1:
                saved.write()
            else:
                saved.close()
            saved.forget_kernels()
        self._opened = opened
        self._missing = set(PARTS)  # before they are dropped: if that fails half-way, none of them can be relied upon
        worker.drop_models()
        release_dropped_models()
        worker.device.trim()

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        """Restore parts. The cache comes after the weights, because its size follows from the models.

        Raises CheckpointError when the weights cannot be read; then they are still missing. When the cache cannot be
        allocated, the weights stay, and the next call only has to restore the cache.
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
            self._missing.discard("weights")
        if worker.instances and "kv_cache" not in left:
            self._missing.add("kv_cache")  # it may have been requested before the weights were present
            worker.allocate_cache()
        self._missing = left
        set_aside()

    def stage(self, update: WeightUpdate) -> WeightSource:
        """Check an update against the weights, and copy data that cannot be read again. Nothing else changes.

        Raises UserError, which says what does not fit; OSError when there is not enough memory for copies.
        """
        loader = self._updating()
        return source_of(update, loader, self._chain(self.state).manifest, self._worker.kept_tensors)

    @property
    def missing(self) -> frozenset[MemoryPart]:
        """Parts of the memory that are released."""
        return frozenset(self._missing)

    def discard(self, source: WeightSource) -> None:
        """Drop a staged update, unless the current weights use it. `settle` releases its memory."""
        self._forget_unused()

    def settle(self, staged: Sequence[WeightSource]) -> None:
        """Release the memory of kept tensors that neither the current weights nor `staged` use."""
        places: list[TensorInfo] = []
        for source in (*self.state.sources, *staged):
            places += source.kept
        self._worker.kept_tensors.keep_only(places)

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        """Switch to staged updates now, or once the weights are woken.

        version: version of the new weights; None: the number of the update.
        frees_first: whether the current models are released before new ones are built.
        Raises UserError when the weights cannot be used; nothing has changed then.
        """
        number = self.state.number + 1
        together = compacted([*self.state.sources, *sources])
        state = WeightsState(version=version or str(number), number=number, sources=together)
        if frees_first and "weights" not in self._missing:
            self._exchange(state)
        else:
            self._use(state, {name for source in sources for name in source.names})

    def reload(self) -> None:
        """Read all weights again from the current files."""
        self._loader = None
        fresh: list[WeightSource] = []
        for source in self.state.sources:
            files = file_states([file.path for file in source.files])
            fresh.append(msgspec.structs.replace(source, files=files))
        before = self._base_files
        self._base_files = known_states(self._worker.base_files)
        number = self.state.number
        version = self.state.version
        # Unchanged files keep their number and version.
        if (tuple(fresh), self._base_files) != (self.state.sources, before):
            number += 1
            version = str(number)
        try:
            self._use(WeightsState(version=version, number=number, sources=tuple(fresh)), None)
        except BaseException:
            self._base_files = before
            raise

    def _exchange(self, state: WeightsState) -> None:
        """Switch to these weights, releasing the current models and their memory first.

        Re-raises the error when the old weights are in use again, read from their files. Raises EngineDeadError when
        not even that is possible: the next engine starts with the old weights, in memory of its own.
        """
        before = self.state
        there = sorted(PARTS - self._missing)
        self.release(2)
        self._opened = None
        self.state = state
        try:
            self.restore(there)
        except Exception as error:  # any error, such as a lack of memory, for which the old weights are released first
            logger.error("New weights cannot be used (%s); those before are read again.", error)
            self.state = before
            traceback.clear_frames(error.__traceback__)  # they keep alive whatever was built of the new models
            self._restore_or_die(there, error)
            raise
        self._forget_unused()

    def _restore_or_die(self, parts: Sequence[MemoryPart], first: Exception) -> None:
        """Restore parts of the old weights. first: why the new ones could not be used. Raises EngineDeadError."""
        try:
            if "weights" not in self._missing:  # the new models were built, but their cache was not
                self.release(2)
                self._opened = None
            release_unused_memory()
            self.restore(parts)
        except Exception as error:
            raise EngineDeadError(
                f"Neither the new weights nor those before can be used: {_message_of(first)}; then {_message_of(error)}."
            ) from error

    def _use(self, state: WeightsState, changed: Set[str] | None) -> None:
        """Switch to these weights now, or once the weights are woken. Raises UserError; nothing has changed then.

        changed: tensors that are newer than the current ones, by their names in files; None: any may be.
        """
        worker = self._worker
        before = worker.saved
        fresh = None if before is None else SpilledWeights(worker.config)
        if "weights" not in self._missing:
            taken_over = self._replace_models(state, changed, fresh)
            self.state = state  # at once: the state must describe the models in use, even if a later line fails
            if fresh is not None and before is not None:
                fresh.take_over(before, taken_over)
        self.state = state
        worker.saved = fresh
        self._opened = None
        if before is not None:
            before.forget_kernels()
            before.close()
        self._forget_unused()
        release_dropped_models()

    def _forget_unused(self) -> None:
        """Forget checkpoints that no tensor is taken from any more."""
        if self._loader is not None:
            self._loader.keep_only({source.path for source in self.state.sources})

    def _replace_models(self, state: WeightsState, changed: Set[str] | None, saved: SpilledWeights | None) -> Set[str]:
        """Build and use models of these weights. Returns the names of the parts that were taken from the old model.

        saved: records the new kernels.
        """
        worker = self._worker
        chain = self._chain(state)
        chain.check()
        checkpoint = worker.open_checkpoint(chain)
        stores = self._following(checkpoint, changed)
        with contextlib.ExitStack() as undo:
            for store in stores:
                if store is not None:
                    undo.callback(store.undo)
            instances = worker.build_models(checkpoint, saved, stores)
            if "kv_cache" in self._missing:
                worker.instances = instances
            else:
                worker.use_models(instances)
            # The new models are in use: their parts are kept.
            undo.pop_all()
        for store in stores:
            if store is not None:
                store.settle()
        own, _ = stores
        return frozenset() if own is None else own.taken_over

    def _following(self, checkpoint: Checkpoint, changed: Set[str] | None) -> Stores:
        """Make the stores of the new models. A draft keeps its weights, unless all are read again."""
        model, *drafts = self._worker.instances
        newer: Set[str] | None = None
        if changed is not None and checkpoint.names is not None:
            newer = checkpoint.names.made_of(changed)
        own = None if model.store is None else model.store.following(newer)
        draft = None
        if drafts and drafts[0].store is not None:
            draft = drafts[0].store.following(None if changed is None else frozenset())
        return own, draft

    def _built(self) -> list[ModelInstance]:
        """Build the models from the first source that has each part: spilled weights, or the tensors of the chain."""
        worker = self._worker
        chain, checkpoint = self._opened or (self._chain(self.state), None)
        chain.check()
        models = worker.build_models(checkpoint or worker.open_checkpoint(chain), worker.saved)
        self._opened = None
        if worker.saved is not None and worker.saved.is_written:
            trim_memory()  # restored kernels leave no garbage, and collecting takes longer than restoring
        else:
            release_unused_memory()
        return models

    def _chain(self, state: WeightsState) -> WeightChain:
        return self._worker.chain(state, self._loader, self._base_files)

    def _updating(self) -> RememberedLoader:
        """Return the checkpoint's own loader. Raises UserError if its tensors cannot be replaced."""
        if self._loader is None:
            loader = self._worker.open_loader()
            if isinstance(loader, HasPrepared):
                model = self._worker.config.model.model
                raise UserError(
                    f"weight update: {model} is a converted model; start the engine with the checkpoint itself."
                )
            self._loader = RememberedLoader(loader)
        return self._loader


def _message_of(error: Exception) -> str:
    """Return an error's message without the final period."""
    return (str(error) or type(error).__name__).rstrip(".")
