"""A bucket, as the loader sees it.

Owns: the interface, the choice by scheme, and the sentences about failures. Never does: know a client's types (each store has
a file of its own). Called by: the object store loader.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from core.api.errors import CheckpointError, UserError

MAX_CAUSE = 200
EXTRA = "pip install 'core-loaders[object-store]'"


class StoredObject(NamedTuple):
    """One object.

    key: its whole name in the bucket.
    size: bytes.
    version: of its content (an etag or a generation); reads are pinned to it.
    """

    key: str
    size: int
    version: str


class ObjectChanged(Exception):
    """The object is not the version any more that was asked for."""


class Bucket(Protocol):
    """One bucket through its provider's client. Any exception of the client may leave these methods."""

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """The objects directly under `prefix`, which ends in `/`."""
        ...

    def read(self, found: StoredObject, begin: int, end: int) -> bytes:
        """Bytes from `begin` to before `end`. Called by several threads. Raises ObjectChanged."""
        ...


class Place(NamedTuple):
    """A reference such as `s3://bucket/some/model`, taken apart. prefix: ends in `/`, or is empty."""

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """As it is shown."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}"


CLIENTS = {
    "s3": ("core_loaders.object_store.s3", "boto3"),
    "gs": ("core_loaders.object_store.gs", "google.cloud.storage"),
    "az": ("core_loaders.object_store.az", "azure.storage.blob"),
}


def place_of(ref: str) -> Place:
    """Take a reference apart. Raises CheckpointError."""
    scheme, _, rest = ref.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in CLIENTS or not bucket:
        raise CheckpointError(f"model '{ref}': expected s3://, gs:// or az://, a bucket and a folder in it.")
    prefix = prefix.strip("/")
    return Place(scheme, bucket, f"{prefix}/" if prefix else "")


def open_bucket(place: Place, endpoint: str | None, connections: int) -> Bucket:
    """The bucket through its client. Raises UserError when that is not installed."""
    module, library = CLIENTS[place.scheme]
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise UserError(f"{place.url}: needs {library}, which cannot be imported here ({error}); {EXTRA}.") from None
    bucket: Bucket = importlib.import_module(module).open_bucket(place.bucket, endpoint, connections)
    return bucket


def failure(url: str, error: Exception) -> CheckpointError:
    """The sentence about what a client raised."""
    if isinstance(error, ObjectChanged):
        return CheckpointError(f"{url}: has changed since its header was read; start again to read the new version.")
    cause = " ".join(str(error).split())[:MAX_CAUSE]
    return CheckpointError(
        f"{url}: cannot be read ({type(error).__name__}: {cause}). Check the name, the network, the credentials of the "
        "store's client and, for another store than the provider's, --model-loader-extra-config.endpoint."
    )
