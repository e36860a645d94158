"""Google Cloud Storage through its own client. Owns: the client's calls. Called by: store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core_loaders.object_store.store import ObjectChanged, StoredObject


class GoogleBucket:
    """`Bucket` over a Google Cloud bucket. The version of an object is its generation."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """List the objects directly under `prefix`."""
        found = []
        for blob in self._client.list_blobs(self._name, prefix=prefix, delimiter="/"):
            found.append(StoredObject(blob.name, blob.size, str(blob.generation)))
        return found

    def read(self, found: StoredObject, begin: int, end: int) -> bytes:
        """Read a range of bytes of that version. Raises ObjectChanged."""
        from google.api_core.exceptions import NotFound, PreconditionFailed, RequestRangeNotSatisfiable

        blob = self._client.bucket(self._name).blob(found.key)
        version = int(found.version)
        try:
            content: bytes = blob.download_as_bytes(
                start=begin, end=end - 1, if_generation_match=version, raw_download=True, checksum=None
            )
        except (NotFound, PreconditionFailed, RequestRangeNotSatisfiable) as error:
            raise ObjectChanged(found.key) from error
        return content


def open_bucket(name: str, endpoint: str | None, connections: int) -> GoogleBucket:
    """Open the bucket with the credentials that the client finds, or anonymously without any."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage

    project = None
    credentials: Any
    try:
        credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_only"])
    except DefaultCredentialsError:
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    options = {"api_endpoint": endpoint} if endpoint else None
    client = storage.Client(project=project or "none", credentials=credentials, client_options=options)
    return GoogleBucket(client, name)
