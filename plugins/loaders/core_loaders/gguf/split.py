"""Models in several GGUF files, named `NAME-00001-of-00003.gguf` and so on.

Owns: the grouping of files into models, and the checks that they belong together. Never does: interpret metadata of
models.
Called by: the GGUF loader.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from core.api.errors import CheckpointError
from core_loaders.gguf.filenames import PART, models_among
from core_loaders.gguf.metadata import Metadata
from core_loaders.gguf.reader import GGUFHeader, read_header
from core_tokens.checkpoint_files import inside

MAX_PARTS: Final = 65_535
AGAIN: Final = "Download all parts again."


class Parts(NamedTuple):
    """The files of one model, in order. headers: of each; the first one has the metadata."""

    files: list[str]
    headers: list[GGUFHeader]


def find_file(ref: str) -> str:
    """Return the file that a reference names, or the (first) one of a directory's only model. Raises CheckpointError."""
    path = Path(ref).expanduser()
    if path.is_dir():
        models = models_among(entry.name for entry in path.iterdir())
        if len(models) != 1:
            listed = ", ".join(models) or "none"
            raise CheckpointError(
                f"{ref}: expected one .gguf file (or the parts of one model) in the directory, found {listed}. Name the file "
                "itself."
            )
        (files,) = models.values()
        path = inside(path, files[0])
    if not path.is_file():
        raise CheckpointError(f"{ref}: there is no such file; expected the path of a .gguf file.")
    return os.path.abspath(path)


def read_parts(path: str) -> Parts:
    """Read the whole model that `path` is a file of. Raises CheckpointError when parts are missing or inconsistent."""
    header = read_header(path)
    metadata = Metadata(path, header.metadata)
    count = metadata.integer("split.count", 0, MAX_PARTS, 0)
    if count <= 1:
        return Parts([path], [header])
    files = _names_of_parts(path, count)
    headers = []
    for number, file in enumerate(files):
        own = header if file == path else read_header(file)
        _check_part(file, own, number, count)
        headers.append(own)
    _check_together(files, headers)
    return Parts(files, headers)


def _names_of_parts(path: str, count: int) -> list[str]:
    """Return the paths of all parts. Raises CheckpointError when one is missing."""
    folder, name = os.path.split(path)
    part = PART.fullmatch(name)
    if part is None or int(part["count"]) != count:
        raise CheckpointError(
            f"{path}: is one of {count} parts of a model, which its name must say: expected one that ends in "
            f"-00001-of-{count:05d}.gguf. Give the parts their names back."
        )
    ending = name[-len(".gguf") :]
    files = [
        os.path.join(folder, f"{part['base']}-{number:05d}-of-{count:05d}{ending}") for number in range(1, count + 1)
    ]
    missing = [os.path.basename(file) for file in files if not os.path.isfile(file)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path}: is one of {count} parts of a model; '{missing[0]}'{more} is not beside it. {AGAIN}"
        )
    for file in files:
        if file != path:
            inside(Path(folder), os.path.basename(file))
    return files


def _check_part(file: str, header: GGUFHeader, number: int, count: int) -> None:
    metadata = Metadata(file, header.metadata)
    own_count = metadata.integer("split.count", 0, MAX_PARTS, 0)
    own_number = metadata.integer("split.no", 0, MAX_PARTS)
    if (own_number, own_count) != (number, count):
        raise CheckpointError(
            f"{file}: says that it is part {own_number + 1} of {own_count}, its name says {number + 1} of {count}. {AGAIN}"
        )


def _check_together(files: list[str], headers: list[GGUFHeader]) -> None:
    """Check that no tensor appears twice, and that there are as many as the first part declares."""
    owners: dict[str, str] = {}
    for file, header in zip(files, headers, strict=True):
        for tensor in header.tensors:
            if tensor.name in owners:
                raise CheckpointError(f"{file}: tensor '{tensor.name}' is in '{owners[tensor.name]}', too. {AGAIN}")
            owners[tensor.name] = os.path.basename(file)
    announced = Metadata(files[0], headers[0].metadata).integer("split.tensors.count", 0, 1 << 31, len(owners))
    if announced != len(owners):
        raise CheckpointError(
            f"{files[0]}: announces {announced} tensors in all parts, which have {len(owners)}. {AGAIN}"
        )
