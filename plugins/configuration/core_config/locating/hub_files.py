"""The choice of a repository's files that a model needs.

Owns: the rules from a listing to the files that are downloaded. Never does: touch the network, or know the hub.
Called by: checkpoint, which passes a `Wanted` to the hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from core.api.errors import CheckpointError
from core_config.locating.gguf_choice import choose_model, parts_of
from core_tokens.checkpoint_files import MAX_INDEX, read_json
from core_tokens.files import PATTERNS, TEMPLATE_PATTERNS

SMALL = ("*.json", "*.txt", "*.model", "*.model.v*", "*.jinja", "*.tiktoken", "additional_chat_templates/*.jinja")
"""Patterns of configuration, tokenizer, templates and the indexes of sharded weights."""
TOKENIZER = (*PATTERNS, *TEMPLATE_PATTERNS)
SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
SAFETENSORS = ("auto", "safetensors", "sharded_state", "bitsandbytes", "runai_streamer", "fastsafetensors")
"""Load formats that read safetensors files, or any format that is present."""
MODULES = "modules.json"
MODULE_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
"""Files of a module of sentence-transformers. Of the two with weights the first is read."""
PICKLES = ("pt", "npcache")
"""Load formats that read files of torch.save."""
TRAINING = ("training_args*", "optimizer*", "scheduler*", "rng_state*")
"""Patterns of files of torch.save without weights."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The files that a reference needs from its repository.

    subject: the reference, for sentences.
    load_format: load format as the user gave it.
    quant, file: choice among several GGUF models.
    ignored: patterns of files that are skipped.
    code: whether Python files are needed too.
    small: patterns of the files without weights; weights are needed too unless `weights` is False.
    """

    subject: str
    load_format: str = "auto"
    quant: str | None = None
    file: str | None = None
    ignored: Sequence[str] = ()
    code: bool = False
    small: Sequence[str] = SMALL
    weights: bool = True

    @property
    def patterns(self) -> list[str]:
        """Return patterns of the files in the top folder that come first: all but the weights."""
        if self.file is not None or self.quant is not None:
            # A GGUF file is complete by itself. These two avoid the client's warning about a download without files.
            return ["config.json", ".gitattributes"]
        return [*self.small, "*.py"] if self.code else list(self.small)

    @property
    def has_weights(self) -> bool:
        """Whether a copy without weights is incomplete."""
        return self.weights and self.load_format != "dummy"

    def weight_files(self, names: Iterable[str], folder: Path) -> list[str]:
        """Return the files with weights, from a listing. Raises CheckpointError when there are several GGUF models.

        folder: folder with the small files, in which an index is read.
        """
        if not self.weights:
            return []
        allowed = [name for name in names if not self._is_ignored(name)]
        if self.file is not None:
            return parts_of(self.file, allowed, self.subject)
        if self.quant is not None or self.load_format == "gguf":
            return choose_model(allowed, self.quant, self.subject)
        top = [name for name in allowed if "/" not in name]
        found = [name for name in _of_format(self.load_format, top, folder) if not self._is_ignored(name)]
        has_gguf = any(name.lower().endswith(".gguf") for name in allowed)
        if not found and self.load_format == "auto" and has_gguf:
            return choose_model(allowed, None, self.subject)
        return [*found, *_modules(allowed)]

    def first_file(self, files: Sequence[str]) -> str | None:
        """Return the file that represents the model, for formats in which a file does rather than the folder."""
        is_gguf = bool(files) and files[0].lower().endswith(".gguf")
        return files[0] if is_gguf else None

    def _is_ignored(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.ignored)


def _modules(names: Sequence[str]) -> list[str]:
    """Return the files of sentence-transformers' modules, in folders of their own: their configurations, and the
    weights of some.
    """
    if MODULES not in names:
        return []
    found: dict[tuple[str, bool], str] = {}
    for name in sorted(names, reverse=True):  # pytorch_model.bin first, so that safetensors replaces it
        folder, _, file = name.rpartition("/")
        if fnmatch(folder, "[0-9]*_*") and file in MODULE_FILES:
            found[folder, file == "config.json"] = name
    return sorted(found.values())


def _of_format(load_format: str, names: Sequence[str], folder: Path) -> list[str]:
    """Return the files with weights in the top folder."""
    if load_format == "dummy":
        return []
    if load_format == "mistral":
        return _matching(names, ("consolidated*.safetensors",))
    if load_format == "tensorizer":
        return _matching(names, ("*.tensors",))
    if load_format in PICKLES:
        return _pickles(names, folder) or _safetensors(names, folder)
    if load_format in SAFETENSORS:
        return _safetensors(names, folder) or _pickles(names, folder)
    return [
        name for name in names if not name.endswith((".md", ".gitattributes"))
    ]  # only its loader knows its files, so all are downloaded


def _safetensors(names: Sequence[str], folder: Path) -> list[str]:
    """Return the shards that the index names, else all files. Duplicates under other names (`consolidated`) count only
    where there are no others.
    """
    indexed = _indexed(names, folder / SAFETENSORS_INDEX)
    if indexed:
        return indexed
    found = _matching(names, ("*.safetensors",))
    plain = [name for name in found if not name.startswith("consolidated")]
    return plain or found


def _pickles(names: Sequence[str], folder: Path) -> list[str]:
    """Return the files of torch.save with weights."""
    indexed = _indexed(names, folder / BIN_INDEX)
    if indexed:
        return indexed
    training = _matching(names, TRAINING)
    for patterns in (("pytorch_model*.bin",), ("*.bin",), ("*.pt", "*.pth")):
        found = [name for name in _matching(names, patterns) if name not in training]
        if found:
            return found
    return []


def _indexed(names: Sequence[str], index: Path) -> list[str]:
    """Return the files that an index names; none when the index is missing or unusable (its loader says so)."""
    if index.name not in names:
        return []
    try:
        weights = read_json(index, MAX_INDEX)["weight_map"]
        return sorted(set(weights.values()))
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return []


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatch(name, pattern) for pattern in patterns))
