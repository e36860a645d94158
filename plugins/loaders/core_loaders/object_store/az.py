"""Azure Blob Storage through its own client. Owns: the client's calls. Called by: store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.api.errors import UserError
from core_loaders.object_store.store import ObjectChanged, StoredObject


class AzureContainer:
    """`Bucket` over an Azure container."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """List the objects directly under `prefix`."""
        found = []
        for blob in self._client.walk_blobs(name_starts_with=prefix, delimiter="/"):
            if not blob.name.endswith("/"):
                found.append(StoredObject(blob.name, blob.size, blob.etag))
        return found

    def read(self, found: StoredObject, begin: int, end: int) -> bytes:
        """Read a range of bytes of that version. Raises ObjectChanged."""
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError

        blob = self._client.get_blob_client(found.key)
        same = {"etag": found.version, "match_condition": MatchConditions.IfNotModified}
        try:
            content: bytes = blob.download_blob(offset=begin, length=end - begin, **same).readall()
        except (ResourceModifiedError, ResourceNotFoundError) as error:
            raise ObjectChanged(found.key) from error
        return content


def open_bucket(name: str, endpoint: str | None, connections: int) -> AzureContainer:
    """Open the container of the account at `endpoint`, which may end in a signature. Raises UserError without one."""
    from azure.storage.blob import BlobServiceClient

    if endpoint is None:
        raise UserError(
            f"az://{name}: the account is not named; give its address, which may end in a signature (SAS): "
            "--model-loader-extra-config.endpoint https://ACCOUNT.blob.core.windows.net"
        )
    has_signature = "?" in endpoint
    encrypted = endpoint.startswith("https://")
    credential = None if has_signature or not encrypted else _credential()
    service = BlobServiceClient(endpoint, credential=credential)
    return AzureContainer(service.get_container_client(name))


def _credential() -> Any:
    """Return this machine's login where the identity library is installed; otherwise None for anonymous access."""
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        return None
    return DefaultAzureCredential()
