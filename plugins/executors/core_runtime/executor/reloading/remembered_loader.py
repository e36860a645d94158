"""A loader that caches the manifests of checkpoints whose files have not changed.

Owns: `RememberedLoader`: the cached manifests, and their validity. Never does: read a tensor by itself. Called by: the
reloader, from the first weight update on: an update resolves the same checkpoints several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Literal

import msgspec
from torch import Tensor

from core.api.weights import FileState
from core_runtime.contracts import Loader, ResolvesTensors
from core_runtime.executor.reloading.file_states import known_states
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource

Key = tuple[Literal["checkpoint", "tensors"], str]
"""Key of a cached manifest: how it was resolved, and the path."""


class RememberedLoader:
    """A caching loader. inner: the checkpoint's own loader. Manifests have no tokenizer, which weights do not need."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner
        self._known: dict[Key, tuple[CheckpointManifest, tuple[FileState, ...]]] = {}

    def resolve(self, ref: str) -> CheckpointManifest:
        """Resolve the checkpoint at `ref`. Raises CheckpointError."""
        return self._resolved(("checkpoint", ref), self._inner.resolve)

    def resolve_tensors(self, ref: str) -> CheckpointManifest:
        """Resolve `ref`, without a configuration if the inner loader can do that. Raises CheckpointError."""
        inner = self._inner
        resolve = inner.resolve_tensors if isinstance(inner, ResolvesTensors) else inner.resolve
        return self._resolved(("tensors", ref), resolve)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Read tensors with the inner loader."""
        return self._inner.iter(manifest, reads)

    def forget(self, ref: str) -> None:
        """Forget the tensors at `ref`, so that they are resolved again."""
        self._known.pop(("tensors", ref), None)

    def keep_only(self, refs: Set[str]) -> None:
        """Forget the tensors at all other places."""
        for kind, ref in list(self._known):
            # The base checkpoint stays: every update resolves it.
            if kind == "tensors" and ref not in refs:
                self.forget(ref)

    def _resolved(self, key: Key, resolve: Callable[[str], CheckpointManifest]) -> CheckpointManifest:
        if key in self._known:
            known, states = self._known[key]
            if known_states(known.files) == states:
                return known
        _, ref = key
        found = msgspec.structs.replace(resolve(ref), tokenizer=TokenizerSource(), generation={})
        self._known[key] = found, known_states(found.files)
        return found
