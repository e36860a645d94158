"""The loader of safetensors in a bucket: headers by range requests first, tensors by concurrent requests later.

Owns: the conversion of a reference to a manifest, and the pinning of every object to the version whose header was read.
Never does: store weights on this machine. Called by: the engine's loading (`iter`), the command line (`resolve`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import CheckpointError, CoreError
from core_loaders.directory import read_directory, read_json
from core_loaders.mapped import view
from core_loaders.object_store.arguments import ObjectStoreArguments
from core_loaders.object_store.store import Bucket, Place, StoredObject, failure, open_bucket, place_of
from core_loaders.object_store.stream import spans_of, stream
from core_loaders.reads import wanted_of
from core_loaders.safetensors.header import Header, header_bytes, parsed, together
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Extensions of the files copied to the cache: configuration, tokenizer, templates."""
FIRST_READ = 1 << 16
"""Bytes of the first read, enough for most headers."""


class ObjectStoreLoader:
    """Loader plugin for object stores."""

    def __init__(self, arguments: ObjectStoreArguments) -> None:
        self._arguments = arguments

    def resolve(self, ref: str) -> CheckpointManifest:
        """List the folder, copy its small files, read the headers; no torch, no weights. Raises CheckpointError."""
        place = place_of(ref)
        bucket = open_bucket(place, self._arguments.endpoint, self._arguments.concurrency)
        try:
            listed = {found.key.removeprefix(place.prefix): found for found in bucket.list(place.prefix)}
        except Exception as error:
            raise failure(place.url, error) from error
        if "config.json" not in listed:
            seen = ", ".join(sorted(listed)[:8]) or "nothing"
            raise CheckpointError(f"{place.url}: there is no config.json in this folder, which holds: {seen}.")
        directory = read_directory(str(self._copied(place, bucket, listed)))
        files = _weight_objects(place, directory.path, listed)
        with ThreadPoolExecutor(self._arguments.concurrency) as pool:
            headers = list(pool.map(lambda number: _header(place, bucket, files[number], number), range(len(files))))
        whole = together(headers, [found.key for found in files])
        return directory.manifest(
            ref, "safetensors", [_pinned(place, found) for found in files], whole.tensors, whole.metadata
        )

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors file by file, in the order of their offsets. Raises CheckpointError."""
        wanted = wanted_of(manifest, reads)
        arguments = self._arguments
        place = place_of(manifest.ref)
        bucket = open_bucket(place, arguments.endpoint, arguments.concurrency)
        files = [_unpinned(place, file) for file in manifest.files]

        def read(file: int, begin: int, end: int) -> bytes:
            return _read(place, bucket, files[file], begin, end)

        spans = spans_of(wanted, arguments.part_bytes)
        coming = stream(
            spans,
            read,
            part_bytes=arguments.part_bytes,
            connections=arguments.concurrency,
            memory_limit=arguments.memory_limit,
        )
        for span, buffer in coming:
            for info in span.tensors:
                placed = msgspec.structs.replace(info, offset=info.offset - span.begin)
                yield info.name, view(buffer, placed)

    def _copied(self, place: Place, bucket: Bucket, listed: dict[str, StoredObject]) -> Path:
        """Return a local directory with the small files, named by their content."""
        small = {name: found for name, found in sorted(listed.items()) if name.endswith(SMALL) and "/" not in name}
        identity = "\n".join([place.url, *map(str, small.values())])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        parent = self._arguments.cache
        root = Path(parent).expanduser() if parent else Path.home() / ".cache" / "core" / "object_store"
        directory = root / digest
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, found in small.items():
                path = directory / name
                if not path.is_file() or path.stat().st_size != found.size:
                    content = _read(place, bucket, found, 0, found.size) if found.size else b""
                    partial = directory / f".{name}.partial"
                    partial.write_bytes(content)
                    partial.replace(path)
        except OSError as error:
            raise CheckpointError(
                f"{directory}: cannot be written ({error.strerror}); name another directory with "
                "--model-loader-extra-config.cache."
            ) from error
        return directory


def _weight_objects(place: Place, directory: Path, listed: dict[str, StoredObject]) -> list[StoredObject]:
    """Return the objects with weights: those named by the index, or all, without second copies under other names."""
    found = sorted(name for name in listed if name.endswith(".safetensors"))
    names = [name for name in found if not name.startswith("consolidated")] or found
    if INDEX in listed:
        weights = read_json(directory / INDEX).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
            raise CheckpointError(f"{place.url}{INDEX}: has no weight_map from tensors to file names.")
        names = sorted(set(weights.values()))
    if not names:
        raise CheckpointError(f"{place.url}: there is no .safetensors file next to config.json.")
    for name in names:
        if name not in listed:
            raise CheckpointError(f"{place.url}{name}: is missing, though {INDEX} names it.")
    return [listed[name] for name in names]


def _header(place: Place, bucket: Bucket, found: StoredObject, number: int) -> Header:
    """Read an object's header with one request, or two for a long header."""
    url = f"{place.scheme}://{place.bucket}/{found.key}"
    first = _read(place, bucket, found, 0, min(FIRST_READ, found.size)) if found.size else b""
    length = header_bytes(url, first[:8], found.size)
    end = 8 + length
    raw = first[8:end]
    if len(first) < end:
        raw += _read(place, bucket, found, len(first), end)
    return parsed(url, raw, found.size, number)


def _read(place: Place, bucket: Bucket, found: StoredObject, begin: int, end: int) -> bytes:
    """Read a range of the listed version. Raises CheckpointError."""
    try:
        return bucket.read(found, begin, end)
    except CoreError:
        raise
    except Exception as error:
        raise failure(f"{place.scheme}://{place.bucket}/{found.key}", error) from error


def _pinned(place: Place, found: StoredObject) -> str:
    """Encode an object and its version as a file name of the manifest."""
    return f"{place.scheme}://{place.bucket}/{found.key}#{found.version}"


def _unpinned(place: Place, file: str) -> StoredObject:
    """Decode a file name of the manifest to its object; the size is no longer needed."""
    url, _, version = file.rpartition("#")
    return StoredObject(url.removeprefix(f"{place.scheme}://{place.bucket}/"), 0, version)
