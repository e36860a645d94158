"""A cache of the manifests of checkpoints whose files have not changed.

Owns: `RememberedLoader`: the cached manifests, and their validity. Never does: read a tensor by itself. Called by: the chain of
weights. The reloader keeps one from the first update on, because an update resolves the same checkpoints several times.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from core.api.weights import FileState
from core_runtime.contracts import Loader, ResolvesTensors
from core_runtime.executor.reloading.file_states import known_states
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource


class RememberedLoader:
    """The cache of one loader. inner: reads the tensors. Manifests have no tokenizer, which weights do not need."""

    def __init__(self, inner: Loader) -> None:
        self.inner = inner
        self._known: dict[tuple[str, bool], tuple[CheckpointManifest, tuple[FileState, ...]]] = {}

    def resolve(self, ref: str, *, update: bool = False) -> CheckpointManifest:
        """Resolve the checkpoint at `ref`, or the tensors of an update. Raises CheckpointError.

        An update needs no configuration, if the inner loader can do without.
        """
        key = ref, update
        if key in self._known:
            known, states = self._known[key]
            if known_states(known.files) == states:
                return known
        resolve = self.inner.resolve
        if update and isinstance(self.inner, ResolvesTensors):
            resolve = self.inner.resolve_tensors
        found = msgspec.structs.replace(resolve(ref), tokenizer=TokenizerSource(), generation={})
        self._known[key] = found, known_states(found.files)
        return found

    def forget(self, ref: str) -> None:
        """Forget the update at `ref`, so that it is resolved again."""
        self._known.pop((ref, True), None)

    def keep_only(self, refs: Set[str]) -> None:
        """Forget the updates at all other places. The checkpoint stays: every update resolves it."""
        for ref, update in list(self._known):
            if update and ref not in refs:
                self.forget(ref)
