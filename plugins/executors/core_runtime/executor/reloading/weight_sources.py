"""Conversion of a weight update to a source that can be read repeatedly.

Owns: the checks of an update, and which sources are still needed. Never does: apply one. Called by: the reloader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from core.api.errors import CheckpointError, UserError, nearest
from core.api.weights import TensorPlace, WeightSource, WeightUpdate
from core_runtime.executor.reloading.file_states import file_states
from core_runtime.executor.reloading.memory_tensors import DTYPES, KeptTensors
from core_runtime.executor.reloading.remembered_loader import RememberedLoader
from core_runtime.specs.checkpoint import ITEM_BYTES, CheckpointManifest, TensorInfo
from core_supervision.link.sparse_file import shared_memory

DTYPE_NAMES: Final = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}
"""Type names of manifests by torch's names."""

FLOATS: Final = ("F64", "F32", "F16", "BF16")
"""Floating-point types that may replace each other: the engine converts them when it reads."""

NEUTRAL_KEYS: Final = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Keys of a configuration that do not affect the meaning of tensors."""


def source_of(
    update: WeightUpdate, loader: RememberedLoader, base: CheckpointManifest, store: KeptTensors
) -> WeightSource:
    """Check an update against the current tensors and return its source; data that cannot be read again is copied.

    loader: the checkpoint's loader. base: its current tensors, by their names in files.
    Raises UserError, which says what does not fit; OSError when there is not enough memory for copies.
    """
    if (update.path is None) == (update.shared_memory is None):
        raise UserError("weight update: expected either `path` or `shared_memory`.")
    if update.path is not None:
        if update.tensors:
            raise UserError("weight update: `tensors` describes shared memory; with `path` give `names`.")
        return _from_files(loader, base, update.path, update.names)
    assert update.shared_memory is not None, "it is one of both"
    if update.names is not None:
        raise UserError("weight update: `names` chooses from a checkpoint; with `shared_memory` give `tensors`.")
    return _from_memory(base, update.shared_memory, update.tensors, store)


def compacted(sources: Sequence[WeightSource]) -> tuple[WeightSource, ...]:
    """Return the sources without tensors that later ones replace."""
    together: list[WeightSource] = []
    newer: set[str] = set()
    for source in reversed(sources):
        names = tuple(name for name in source.names if name not in newer)
        kept = tuple(info for info in source.kept if info.name not in newer)
        newer.update(names)
        if names:
            together.append(msgspec.structs.replace(source, names=names, kept=kept))
    together.reverse()
    return tuple(together)


def _from_files(
    loader: RememberedLoader, base: CheckpointManifest, path: str, names: Sequence[str] | None
) -> WeightSource:
    absolute = str(Path(path).expanduser().absolute())
    # Resolved again, even if a manifest is remembered.
    loader.forget(absolute)
    found = loader.resolve(absolute, update=True)
    _check_same_shape(base, found)
    for name in names or ():
        if name not in found.tensors:
            raise CheckpointError(f"{path}: has no tensor '{name}'. Nothing was changed.")
    chosen = tuple(found.tensors) if names is None else tuple(dict.fromkeys(names))
    _check_fit(base, {name: found.tensors[name] for name in chosen}, path)
    return WeightSource(path=absolute, names=chosen, files=file_states(found.files))


def _from_memory(
    base: CheckpointManifest, name: str, tensors: Sequence[TensorPlace], store: KeptTensors
) -> WeightSource:
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
    _check_fit(base, wanted, ref)
    for info in wanted.values():
        end = info.offset + info.nbytes
        if end > len(memory):
            raise UserError(f"{ref}: tensor '{info.name}' ends at byte {end} of {len(memory)}. Nothing was changed.")
    # Copied only when all checks have passed.
    kept, digest = store.keep(memory, list(wanted.values()))
    return WeightSource(names=tuple(wanted), kept=kept, digest=digest)


def _placed(place: TensorPlace, base: CheckpointManifest) -> TensorInfo:
    """Return the description of a tensor in shared memory; one of a packed type has the size of the tensor it replaces."""
    dtype = DTYPE_NAMES.get(place.dtype, place.dtype)
    shape = tuple(place.shape)
    known = base.tensors.get(place.name)
    nbytes = 0 if known is None else known.nbytes
    if dtype in ITEM_BYTES:
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    return TensorInfo(place.name, shape, dtype, nbytes, 0, place.offset, place.name)


def _check_fit(base: CheckpointManifest, found: Mapping[str, TensorInfo], ref: str) -> None:
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


def _check_same_shape(base: CheckpointManifest, new: CheckpointManifest) -> None:
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
