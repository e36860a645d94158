"""Models with a hub name: downloaded, or taken from the hub's cache.

Owns: the order of requests to a repository (small files, listing, weights) and the sentences about failures.
Never does: guess names, choose files (`hub_files` does), import torch. Called by: checkpoint.

The hub's own client maintains the cache, in its layout, so other programs share the files. Without the network the
cache suffices, as long as it has all files that are needed.
"""

from __future__ import annotations

import errno
import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.api.errors import CheckpointError, CoreError, UserError
from core_config.locating.hub_files import Wanted
from core_config.locating.hub_transfer import Source, transfer
from core_config.stages.memory import human_bytes

MAX_CAUSE = 200


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and its cache, from the arguments.

    endpoint: its address, or None for the client's own.
    token: token for repositories that need one, or None for the stored login.
    directory: directory of the cache, or None for the client's own.
    progress: whether bytes and rate are shown.
    """

    endpoint: str | None = None
    token: str | None = None
    directory: str | None = None
    progress: bool = False

    def download(self, name: str, revision: str | None, wanted: Wanted) -> Path:
        """Return the local copy of the wanted files of `name` (`owner/model`): a directory, or a file. Raises
        UserError.
        """
        with self._sentences(name, revision):
            folder = self._small_files(name, revision, wanted)
            listing, failure = self._listing(name, folder.name)
            if listing is None:
                files = self._cached_weights(name, folder, wanted, failure)
            else:
                files = wanted.weight_files(sorted(listing), folder)
                self._fetch(name, folder, files, listing)
        first = wanted.first_file(files)
        return folder if first is None else folder / first

    @property
    def cache(self) -> Path:
        """Return the directory of the cache."""
        from huggingface_hub.constants import HF_HUB_CACHE

        return Path(self.directory or HF_HUB_CACHE).expanduser()

    def _small_files(self, name: str, revision: str | None, wanted: Wanted) -> Path:
        """Return the snapshot's folder, named by its commit, after the download of the small files."""
        from huggingface_hub import snapshot_download

        from core_config.locating.hub_transfer import silent_bar

        path = snapshot_download(
            name,
            revision=revision,
            cache_dir=self.directory,
            token=self.token,
            endpoint=self.endpoint,
            allow_patterns=wanted.patterns,
            ignore_patterns=["*/*", *wanted.ignored],
            tqdm_class=silent_bar(),
        )
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)  # the client creates none where no file matches
        return folder

    def _listing(self, name: str, commit: str) -> tuple[dict[str, int] | None, Exception | None]:
        """Return the bytes of every file of the repository, or the failure of the hub: the cache may still have all
        files.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        api = HfApi(endpoint=self.endpoint, token=self.token)
        try:
            siblings = api.model_info(name, revision=commit, files_metadata=True).siblings
        except Exception as error:
            if isinstance(error, HfHubHTTPError) or is_network_error(error):
                return None, error
            raise
        return {sibling.rfilename: sibling.size or 0 for sibling in siblings or ()}, None

    def _cached_weights(self, name: str, folder: Path, wanted: Wanted, failure: Exception | None) -> list[str]:
        """Return the files with weights when only the cache is available. Raises CheckpointError, or `failure`, when
        one is missing.
        """
        from huggingface_hub.errors import HfHubHTTPError

        unknown = "The hub cannot be reached, so only what the cache holds is known."
        try:
            files = wanted.weight_files(_files_in(folder), folder)
        except CheckpointError as error:
            raise CheckpointError(f"{error} {unknown}") from error
        missing = [file for file in files if not (folder / file).is_file()]
        is_whole = not missing and (files or not wanted.has_weights)
        if is_whole:
            return files
        if isinstance(failure, HfHubHTTPError):
            raise failure  # the hub is reachable, but refuses it
        lacks = _told(missing) or "its weights"
        raise CheckpointError(
            f"model '{name}': the copy in {folder} lacks {lacks}, and the hub cannot be reached. "
            "Start once with the network, which downloads only these."
        )

    def _fetch(self, name: str, folder: Path, files: Sequence[str], listing: Mapping[str, int]) -> None:
        """Download the files that the cache lacks. Raises UserError when that is impossible."""
        missing = [file for file in files if not (folder / file).is_file()]
        if not missing:
            return
        strangers = [file for file in missing if file not in listing]
        if strangers:
            raise CheckpointError(f"model '{name}': its index names {_told(strangers)}, which the hub does not have.")
        sizes = {file: listing[file] for file in missing}
        self._check_room(name, folder, sizes)
        source = Source(name, folder.name, self.endpoint, self.token, self.cache)
        transfer(source, sizes, progress=self.progress)

    def _check_room(self, name: str, folder: Path, sizes: Mapping[str, int]) -> None:
        """Raise UserError when the cache's disk is too small for the remaining files."""
        needed = sum(sizes.values())
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise UserError(
                f"model '{name}': {human_bytes(needed)} are to be downloaded, and {self.cache} has room for "
                f"{human_bytes(free)}. "
                "Free some, or name another directory with --download-dir."
            )

    @contextmanager
    def _sentences(self, name: str, revision: str | None) -> Iterator[None]:
        """Translate every exception of the client to a sentence with a way out."""
        try:
            yield
        except (CoreError, KeyboardInterrupt):
            raise
        except Exception as error:
            if not isinstance(error, (OSError, ValueError, RuntimeError)) and not is_network_error(error):
                raise
            raise UserError(self._sentence(name, revision, error)) from error

    def _sentence(self, name: str, revision: str | None, error: Exception) -> str:
        from huggingface_hub import constants, errors

        where = self.endpoint or constants.ENDPOINT
        cause = _cause(error)
        if isinstance(error, errors.GatedRepoError):
            return (
                f"model '{name}': is gated. Accept its conditions at {where}/{name} and give a token of that account, "
                "with --hf-token or `hf auth login`."
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"model '{name}': not a local path, and {where} has no such model, or not for this token. "
                "Check the name; a private model needs --hf-token or `hf auth login`."
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"model '{name}': has no revision '{revision}'; expected a branch, a tag or a commit of it in --revision."
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"model '{name}': the disk of {self.cache} is full. Free some space, or use another --download-dir."
        if isinstance(error, errors.LocalEntryNotFoundError) or is_network_error(error):
            return (
                f"model '{name}': not a local path, {where} cannot be reached, and {self.cache} holds no whole copy "
                f"({cause}). Check the network and --hf-endpoint, or name an existing file or directory."
            )
        return (
            f"model '{name}': not a local path, and the hub did not give it ({type(error).__name__}: {cause}). "
            "Name an existing file or directory, or check the name, the network and --hf-token."
        )


def is_network_error(error: BaseException) -> bool:
    """Whether an error of the client means a network failure. The client's HTTP library is its own choice, so several
    are known.
    """
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError) or bool(modules & {"httpx", "httpx2", "requests", "httpcore"})


def _cause(error: Exception) -> str:
    """Return the client's message on one line; of a long message, the whole sentences at the beginning."""
    text = " ".join(str(error).split())
    if len(text) <= MAX_CAUSE:
        return text
    end = text.rfind(". ", 0, MAX_CAUSE)
    return text[:end] if end > 0 else textwrap.shorten(text, MAX_CAUSE, placeholder=" ...")


def _told(files: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return ", ".join(files[:3]) + more


def _files_in(folder: Path) -> list[str]:
    """Return relative names of the files in a snapshot."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            found.append((Path(parent) / name).relative_to(folder).as_posix())
    return sorted(found)
