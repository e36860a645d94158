"""A loader that does not read again what it knows of checkpoints whose files have not changed.

Owns: `RememberedLoader`: what was resolved, and when that still holds. Never does: read a tensor by itself. Called by: the
reloader, from the first update of weights on: an update asks for the same checkpoints several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Literal

import msgspec
from torch import Tensor

from core.api.weights import FileState
from core_runtime.contracts import Loader, ResolvesTensors
from core_runtime.executor.file_states import known_states
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource

Key = tuple[Literal["checkpoint", "tensors"], str]
"""What was resolved, and its place."""


class RememberedLoader:
    """inner: the checkpoint's own loader. Manifests come without tokenizer, which nobody needs of weights."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner
        self._known: dict[Key, tuple[CheckpointManifest, tuple[FileState, ...]]] = {}

    def resolve(self, ref: str) -> CheckpointManifest:
        """The checkpoint at `ref`. Raises CheckpointError."""
        return self._resolved(("checkpoint", ref), self._inner.resolve)

    def resolve_tensors(self, ref: str) -> CheckpointManifest:
        """What lies at `ref`, without a configuration where the inner loader reads such. Raises CheckpointError."""
        inner = self._inner
        resolve = inner.resolve_tensors if isinstance(inner, ResolvesTensors) else inner.resolve
        return self._resolved(("tensors", ref), resolve)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """As the inner one."""
        return self._inner.iter(manifest, reads)

    def forget(self, ref: str) -> None:
        """Read the tensors at `ref` anew the next time."""
        self._known.pop(("tensors", ref), None)

    def keep_only(self, refs: Set[str]) -> None:
        """Forget the tensors at all other places."""
        for kind, ref in list(self._known):
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
