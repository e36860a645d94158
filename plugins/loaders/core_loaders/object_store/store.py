"""The interface of a bucket.

Owns: the interface, the choice by scheme, and the errors about failures. Never does: know a client's types (each store
has its own file). Called by: the object store loader.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from core.api.errors import CheckpointError, UserError

MAX_CAUSE = 200
EXTRA = "pip install 'core-engine-loaders[object-store]'"


class StoredObject(NamedTuple):
    """A stored object.

    key: its whole name in the bucket.
    size: bytes.
    version: of its content (an etag or a generation); reads are pinned to it.
    """

    key: str
    size: int
    version: str


class ObjectChanged(Exception):
    """Raised when the object is no longer the requested version."""


class Bucket(Protocol):
    """A bucket accessed through its provider's client. Its methods may raise any exception of the client."""

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """List the objects directly under `prefix`, which ends in `/`."""
        ...

    def read(self, found: StoredObject, begin: int, end: int) -> bytes:
        """Read bytes from `begin` to before `end`. Called by several threads. Raises ObjectChanged."""
        ...


class Place(NamedTuple):
    """A parsed reference such as `s3://bucket/some/model`. prefix: ends in `/`, or is empty."""

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """Return the URL as shown to users."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}"


CLIENTS = {
    "s3": ("core_loaders.object_store.s3", "boto3"),
    "gs": ("core_loaders.object_store.gs", "google.cloud.storage"),
    "az": ("core_loaders.object_store.az", "azure.storage.blob"),
}


def place_of(ref: str) -> Place:
    """Parse a reference. Raises CheckpointError."""
    scheme, _, rest = ref.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in CLIENTS or not bucket:
        raise CheckpointError(f"model '{ref}': expected s3://, gs:// or az://, a bucket and a folder in it.")
    prefix = prefix.strip("/")
    return Place(scheme, bucket, f"{prefix}/" if prefix else "")


def open_bucket(place: Place, endpoint: str | None, connections: int) -> Bucket:
    """Open the bucket through its client. Raises UserError when that is not installed."""
    module, library = CLIENTS[place.scheme]
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise UserError(f"{place.url}: needs {library}, which cannot be imported here ({error}); {EXTRA}.") from None
    bucket: Bucket = importlib.import_module(module).open_bucket(place.bucket, endpoint, connections)
    return bucket


def failure(url: str, error: Exception) -> CheckpointError:
    """Return the error for an exception of a client."""
    if isinstance(error, ObjectChanged):
        return CheckpointError(f"{url}: has changed since its header was read; start again to read the new version.")
    cause = " ".join(str(error).split())[:MAX_CAUSE]
    return CheckpointError(
        f"{url}: cannot be read ({type(error).__name__}: {cause}). Check the name, the network, the credentials of the "
        "store's client and, for another store than the provider's, --model-loader-extra-config.endpoint."
    )
