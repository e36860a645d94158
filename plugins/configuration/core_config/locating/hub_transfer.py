"""Download of a repository's large files, with a progress bar, that resumes an interrupted download.

Owns: the partial files next to the blobs of the hub's cache. Never does: choose files, or maintain the cache's layout
(the hub's client links an existing blob). Called by: hub.

The client itself deletes a partial file when its process ends. Files in the hub's chunk storage (Xet) are left to it
where its library is installed, which is faster than one connection.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from core.api.errors import UserError

if TYPE_CHECKING:
    from tqdm import tqdm

CONNECTIONS = 8
SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class Source:
    """One commit of one repository.

    name: `owner/model`.
    commit: 40 digits.
    endpoint, token, cache: see `Hub`.
    """

    name: str
    commit: str
    endpoint: str | None
    token: str | None
    cache: Path


def transfer(source: Source, sizes: Mapping[str, int], *, progress: bool) -> None:
    """Download the files into the cache. sizes: bytes by name. Raises the client's exceptions."""
    from tqdm import tqdm

    stop = threading.Event()
    total = sum(sizes.values())
    label = f"Downloading {source.name}"
    bar = tqdm(total=total, desc=label, unit="B", unit_scale=True, unit_divisor=1024, disable=not progress)
    share = _share_of(bar, stop)
    with bar, ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            for done in [pool.submit(_fetch, source, file, share) for file in sizes]:
                done.result()
        except BaseException:
            stop.set()  # the other downloads end at their next chunk; their partial files stay
            pool.shutdown(cancel_futures=True)
            raise


def silent_bar() -> type[Any]:
    """Return a progress bar class that shows nothing, for downloads of a few kilobytes."""
    from tqdm import tqdm

    class Silent(tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    return Silent


def _share_of(bar: tqdm[Any], stop: threading.Event) -> type[Any]:
    """Return the bar class of one file, which adds to the bar of all files."""
    silent = silent_bar()

    class Share(silent):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            here = int(options.get("initial") or 0)
            if not bar.disable:
                bar.initial += here  # bytes of an earlier attempt count as progress, but not for the rate
                bar.n += here

        def update(self, count: float | None = 1) -> None:
            if stop.is_set():
                raise InterruptedError("another file could not be downloaded")
            bar.update(count)

    return Share


def _fetch(source: Source, file: str, bar: type[Any]) -> None:
    """Download one file, resuming where the server allows it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import is_xet_available  # type: ignore[attr-defined]

    url = hf_hub_url(source.name, file, revision=source.commit, endpoint=source.endpoint)
    found = get_hf_file_metadata(url, token=source.token, endpoint=source.endpoint)
    by_chunks = found.xet_file_data is not None and is_xet_available()
    if found.etag is not None and found.size is not None and not by_chunks:
        _resume(source, file, url, found, bar)
    hf_hub_download(
        source.name,
        file,
        revision=source.commit,
        cache_dir=source.cache,
        token=source.token,
        endpoint=source.endpoint,
        tqdm_class=bar,
    )


def _resume(source: Source, file: str, url: str, found: Any, bar: type[Any]) -> None:
    """Download the file's blob from the end of its partial file on. found: the client's metadata of the file."""
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]

    folder = repo_folder_name(repo_id=source.name, repo_type="model")
    blob = source.cache / folder / "blobs" / found.etag
    lock = source.cache / ".locks" / folder / f"{found.etag}.partial.lock"
    for parent in (blob.parent, lock.parent):
        parent.mkdir(parents=True, exist_ok=True)
    headers = build_hf_headers(token=source.token)
    if urlsplit(found.location)[:2] != urlsplit(url)[:2]:
        headers.pop("authorization", None)  # a signed address of another host, which must not receive the token
    partial = blob.with_name(f"{found.etag}.partial.incomplete")
    with WeakFileLock(lock):
        if blob.exists():
            return
        here = partial.stat().st_size if partial.exists() else 0
        if here > found.size:
            partial.unlink()
            here = 0
        with partial.open("ab") as stream:
            http_get(
                found.location, stream, resume_size=here, headers=headers, expected_size=found.size, tqdm_class=bar
            )
        # Only the etag of a large file is its SHA-256; the etag of a small one is a git hash.
        if here and len(found.etag) == SHA256_DIGITS:
            _check(partial, found.etag, file)
        partial.replace(blob)


def _check(partial: Path, expected: str, file: str) -> None:
    """Check the hash of a file from two attempts. If it differs, delete it and raise UserError, so that the next start
    downloads it again.
    """
    with partial.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != expected:
        partial.unlink()
        raise UserError(f"{file}: an interrupted download was not what the hub has; start again to download it anew.")
