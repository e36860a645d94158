"""The choice of one GGUF model among several, by the quantization in its name, with all of its parts.

Owns: the grouping of file names to models, and the meaning of a word such as `Q4_K_M`. Never does: open a file.
Called by: hub_files (a repository's listing), checkpoint (a local directory).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from core.api.errors import CheckpointError

_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_COMPANION = re.compile(r"(^|[-._])(mmproj|imatrix)([-._]|$)", re.IGNORECASE)
"""Files that end in .gguf and accompany a model, but are not models."""
_QUANT = re.compile(r"(?<![A-Za-z0-9])((UD-)?(I?Q|TQ)\d\w*|BF16|F16|F32|MXFP4\w*)(?=[-.]|$)", re.IGNORECASE)
_MOST_SHOWN = 24


def is_projector(name: str) -> bool:
    """Whether a file's name is that of the projector of a model's pictures or sounds."""
    found = _COMPANION.search(PurePosixPath(name).stem)
    return name.lower().endswith(".gguf") and found is not None and found[2].lower() == "mmproj"


def choose_model(names: Iterable[str], quant: str | None, subject: str) -> list[str]:
    """Return the files of the chosen model, the first part first. Raises CheckpointError with the choices.

    names: relative, with `/`.
    quant: None when there should be only one.
    subject: source of the names, for the sentence.
    """
    models = _models(names)
    found = models if quant is None else {stem: files for stem, files in models.items() if _matches(stem, quant)}
    if len(found) == 1:
        ((stem, files),) = found.items()
        _check_parts(stem, files, subject)
        return files
    if not models:
        raise CheckpointError(f"model '{subject}': there is no GGUF file in it; leave out what chooses one.")
    told = "; ".join(_shown_names(found or models)[:_MOST_SHOWN])
    if quant is None:
        raise CheckpointError(
            f"model '{subject}': holds {len(found)} GGUF models; name one as '{subject}:WORD', of: {told}."
        )
    if not found:
        raise CheckpointError(f"model '{subject}': no GGUF file's name holds '{quant}'; there are: {told}.")
    raise CheckpointError(f"model '{subject}': '{quant}' fits {len(found)} GGUF models ({told}); name the file itself.")


def parts_of(file: str, names: Iterable[str], subject: str) -> list[str]:
    """Return the files of the model that `file` is, or is a part of. Raises CheckpointError when it does not exist."""
    for stem, files in _models(names, companions=True).items():
        if file in files:
            _check_parts(stem, files, subject)
            return files
    told = "; ".join(_shown_names(_models(names))[:_MOST_SHOWN]) or "none"
    raise CheckpointError(f"model '{subject}': there is no file '{file}'; GGUF models: {told}.")


def _models(names: Iterable[str], *, companions: bool = False) -> dict[str, list[str]]:
    """Return model name → files. The model name lacks `.gguf` and the number of the part."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix.lower() != ".gguf" or (_COMPANION.search(path.stem) and not companions):
            continue
        stem = _PART.sub("", str(path.with_suffix("")))
        models.setdefault(stem, []).append(name)
    return models


def _matches(stem: str, quant: str) -> bool:
    """Whether `quant` is a whole word of the name, or of a folder's: Q4_K is not a word of Q4_K_M."""
    word = re.compile(rf"(^|[-._/]){re.escape(quant)}([-./]|$)", re.IGNORECASE)
    return word.search(stem) is not None


def _check_parts(stem: str, files: Sequence[str], subject: str) -> None:
    """Raise CheckpointError when a part is missing."""
    counts = set()
    numbers = set()
    for file in files:
        part = _PART.search(str(PurePosixPath(file).with_suffix("")))
        if part is not None:
            counts.add(int(part["count"]))
            numbers.add(int(part["number"]))
    if not counts:
        return
    expected = set(range(1, max(counts) + 1))
    missing = sorted(expected - numbers)
    if missing or len(counts) > 1 or len(numbers) != len(files):
        told = ", ".join(map(str, missing[:8])) or "none"
        raise CheckpointError(
            f"model '{subject}': {stem} is split into {max(counts)} parts, of which {len(files)} are there "
            f"(missing: {told}). Is the download complete?"
        )


def _shown_names(models: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each model's quantization where it is unique, else its name."""
    words = []
    for stem in models:
        found = _QUANT.search(PurePosixPath(stem).name) or _QUANT.search(stem)
        words.append(found[0] if found else "")
    told = []
    for stem, word in zip(models, words, strict=True):
        told.append(word if word and words.count(word) == 1 else f"{stem}.gguf")
    return told
