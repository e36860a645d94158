"""S3 and compatible stores, through boto3. Owns: the client's calls. Called by: store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core_loaders.object_store.store import ObjectChanged, StoredObject


class S3Bucket:
    """`Bucket` over an S3 bucket."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """List the objects directly under `prefix`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix, Delimiter="/")
        found = []
        for page in pages:
            for entry in page.get("Contents", ()):
                found.append(StoredObject(entry["Key"], entry["Size"], entry["ETag"]))
        return found

    def read(self, found: StoredObject, begin: int, end: int) -> bytes:
        """Read a range of bytes of that version. Raises ObjectChanged."""
        from botocore.exceptions import ClientError

        span = f"bytes={begin}-{end - 1}"
        try:
            answer = self._client.get_object(Bucket=self._name, Key=found.key, Range=span, IfMatch=found.version)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in (404, 412, 416):
                raise ObjectChanged(found.key) from error
            raise
        content: bytes = answer["Body"].read()
        return content


def open_bucket(name: str, endpoint: str | None, connections: int) -> S3Bucket:
    """Open the bucket with the credentials that boto3 finds."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=connections, retries={"mode": "standard"})
    client = boto3.session.Session().client("s3", endpoint_url=endpoint, config=config)
    return S3Bucket(client, name)
