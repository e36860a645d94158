"""A checkpoint some of whose tensors are replaced by newer ones.

Owns: the loader that reads each tensor where it lies now, and the checks whether new tensors fit. Never does: choose what is
replaced, or build a model. Called by: the worker (opens a checkpoint through it), the reloader (checks updates).

It works below canonical names: tensors have the names that the checkpoint's own loader gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from torch import Tensor

from core.api.errors import CheckpointError, nearest
from core.api.weights import WeightSource, WeightsState
from core_runtime.contracts import Loader, ResolvesTensors
from core_runtime.executor.reloading.file_states import check_unchanged
from core_runtime.executor.reloading.kept_tensors import KeptTensors
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

FLOATS: Final = ("F64", "F32", "F16", "BF16")
"""Floating-point types that may replace each other: the engine converts them when it reads."""

NEUTRAL_KEYS: Final = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Keys of a configuration that do not affect the meaning of tensors."""


class Overlay(Protocol):
    """Replacement tensors. tensors: by name."""

    tensors: Mapping[str, TensorInfo]

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors, each valid until the next one is drawn."""
        ...


class CheckpointOverlay:
    """Tensors of another checkpoint of the same format."""

    def __init__(self, loader: Loader, manifest: CheckpointManifest, names: Sequence[str]) -> None:
        self._loader = loader
        self._manifest = manifest
        self.tensors: Mapping[str, TensorInfo] = {name: manifest.tensors[name] for name in names}

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors from the other checkpoint."""
        return self._loader.iter(self._manifest, names)


class KeptOverlay:
    """Replacement tensors that were kept in memory."""

    def __init__(self, store: KeptTensors, places: Sequence[TensorInfo]) -> None:
        self._store = store
        self.tensors: Mapping[str, TensorInfo] = {info.name: info for info in places}

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors from memory."""
        for name in names:
            yield name, self._store.read(self.tensors[name])


class OverlayLoader:
    """A checkpoint's loader with overlays. overlays: later ones take precedence over earlier ones."""

    def __init__(self, inner: Loader, overlays: Sequence[Overlay]) -> None:
        self._inner = inner
        self._overlays = overlays
        self._base: CheckpointManifest | None = None

    def resolve(self, ref: str) -> CheckpointManifest:
        """Resolve the checkpoint; each tensor has its newest description."""
        self._base = self._inner.resolve(ref)
        tensors = dict(self._base.tensors)
        for overlay in self._overlays:
            tensors.update(overlay.tensors)
        return msgspec.structs.replace(self._base, tensors=tensors)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors, each from the newest overlay that has it, or from the checkpoint."""
        assert self._base is not None, "a manifest comes from `resolve`"
        left = list(dict.fromkeys(reads))
        # The newest first, so that each tensor is read once, from the overlay that replaced it last.
        for overlay in reversed(self._overlays):
            own = [name for name in left if name in overlay.tensors]
            left = [name for name in left if name not in overlay.tensors]
            if own:
                yield from overlay.read(own)
        # With the base manifest: the inner loader does not know where the tensors of overlays lie.
        yield from self._inner.iter(self._base, left)


def overlaid(loader: Loader, state: WeightsState, store: KeptTensors) -> Loader:
    """Wrap a loader with the sources of `state`. Raises CheckpointError when a source's files have changed."""
    if not state.sources:
        return loader
    overlays = [_overlay(source, loader, store) for source in state.sources]
    return OverlayLoader(loader, overlays)


def _overlay(source: WeightSource, loader: Loader, store: KeptTensors) -> Overlay:
    if not source.path:
        return KeptOverlay(store, source.kept)
    # Otherwise the weights would silently become those of another version.
    check_unchanged(source.files)
    return CheckpointOverlay(loader, resolve_source(loader, source.path), source.names)


def resolve_source(loader: Loader, path: str) -> CheckpointManifest:
    """Resolve a path: a checkpoint, or tensors without a configuration if the loader can read them.

    Raises CheckpointError.
    """
    if isinstance(loader, ResolvesTensors):
        return loader.resolve_tensors(path)
    return loader.resolve(path)


def check_fit(base: CheckpointManifest, found: Mapping[str, TensorInfo], ref: str) -> None:
    """Check that tensors can replace those of the same names. ref: where they come from. Raises CheckpointError."""
    if not found:
        raise CheckpointError(f"{ref}: no tensor is named; name some, or leave `names` out for all that are there.")
    for name, info in found.items():
        known = base.tensors.get(name)
        if known is None:
            hint = nearest(name, base.tensors)
            raise CheckpointError(f"{ref}: tensor '{name}' is none of {base.ref}.{hint} Nothing was changed.")
        if tuple(info.shape) != tuple(known.shape):
            raise CheckpointError(
                f"{ref}: tensor '{name}' has shape {list(info.shape)}, expected {list(known.shape)}. Nothing was changed."
            )
        both_floats = info.dtype in FLOATS and known.dtype in FLOATS
        if info.dtype != known.dtype and not both_floats:
            raise CheckpointError(
                f"{ref}: tensor '{name}' is of type {info.dtype}, expected {known.dtype}. Nothing was changed."
            )


def check_same_shape(base: CheckpointManifest, new: CheckpointManifest) -> None:
    """Check that two configurations mean the same model; an empty one matches any. Raises CheckpointError."""
    if not new.config:
        return
    for key in sorted(base.config.keys() | new.config.keys()):
        mine = base.config.get(key)
        theirs = new.config.get(key)
        if key not in NEUTRAL_KEYS and mine != theirs:
            raise CheckpointError(
                f"{new.ref}: its configuration says {key}: {_short(theirs)}, the engine's {_short(mine)}; weights are "
                "replaced by those of the same model only. Nothing was changed."
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
