"""What a loader finds in a checkpoint before any weight is read.

Owns: the manifest of tensors, the tokenizer's source and the facts that selection works with. Never does: read files.
Called by: loaders (they build manifests), config (facts, memory plan), tokens (tokenizer source), models (configuration).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.declaration import find_declaration, method_of
from core.api.pooling import PoolingKind

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of an element of plain types; types of GGUF and other packed ones are not among them."""


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a checkpoint under its canonical (Hugging Face) name.

    shape:  logical shape, (N, K) for a matrix, whatever the packing.
    dtype:  `F32`, `F16`, `BF16`, `I32`, `U8`, ... or a GGUF type such as `Q4_1`.
    nbytes: bytes in the file.
    file:   index into the manifest's files. offset: bytes from the start of that file.
    source: the tensor's own name in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: int
    offset: int
    source: str


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer given as data rather than as `tokenizer.json`.

    model: one of
        `bpe`: byte-level, tokens spelled in GPT-2's printable characters, with merges; without them, neighbours whose union
        has the best score are merged;
        `spm`: sentencepiece's BPE, with scores;
        `unigram`: sentencepiece's unigram, with scores;
        `wordpiece`: BERT's, later pieces of a word written with `##`.
    pre: name of the pre-tokenizer (`smollm`, `llama-bpe`, ...), or empty. For `bpe`.
    pattern: regular expression whose matches are merged apart, instead of `pre`.
    types: GGUF token types: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    sep_token_id: token after each text where `add_sep` asks for one.
    add_space_prefix: a space goes before the text.
    space_prefix_once: not again after a special token within the text.
    byte_fallback: characters without a token become tokens of bytes. For `spm` and `unigram`.
    charsmap: sentencepiece's compiled rules of normalization, or empty.
    remove_extra_whitespaces: runs of spaces count as one, those at the ends not at all.
    lowercase, strip_accents, split_chinese: BERT's normalization. strip_accents: None does what `lowercase` says.
    """

    model: Literal["bpe", "spm", "unigram", "wordpiece"]
    tokens: list[str]
    pre: str = ""
    merges: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    pattern: str = ""
    sep_token_id: int | None = None
    add_sep: bool = False
    space_prefix_once: bool = False
    byte_fallback: bool = True
    charsmap: bytes = b""
    remove_extra_whitespaces: bool = False
    lowercase: bool = True
    strip_accents: bool | None = None
    split_chinese: bool = True


class TokenizerSource(msgspec.Struct, frozen=True):
    """Where the tokenizer comes from: a directory with its files, or a vocabulary. None of both: no tokenizer.

    chat_template: Jinja source from the checkpoint, or None.
    named_templates: further templates of the checkpoint by name (`tool_use`, ...).
    """

    directory: str | None = None
    vocabulary: Vocabulary | None = None
    chat_template: str | None = None
    named_templates: dict[str, str] = {}


class CheckpointManifest(msgspec.Struct, frozen=True):
    """Everything about a checkpoint but its weights.

    ref:        what the user named. format: the loader's word for it (`gguf`, `safetensors`, `dummy`).
    files:      absolute paths. tensors: by canonical name.
    config:     the model's configuration in the style of Hugging Face's `config.json` (translated when the format has
                its own metadata); always holds `model_type`.
    generation: the style of `generation_config.json`: `eos_token_id` (int or list), `temperature`, ...
    metadata:   what the files say about their tensors besides, as strings by name, of all files together.
    pooling:    what becomes of hidden states, where the format says it; None: it does not.
    """

    ref: str
    format: str
    files: list[str]
    tensors: dict[str, TensorInfo]
    config: dict[str, Any]
    tokenizer: TokenizerSource
    generation: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    pooling: PoolingKind | None = None

    def facts(self) -> CheckpointFacts:
        """The short form that selection works with."""
        declaration = find_declaration(self.config)
        return CheckpointFacts(
            ref=self.ref,
            format=self.format,
            model_type=str(self.config.get("model_type", "")),
            architectures=tuple(self.config.get("architectures") or ()),
            quantization=method_of(declaration),
            tensor_dtypes=tuple(sorted({info.dtype for info in self.tensors.values()})),
            config=self.config,
            declaration=declaration or {},
        )


class CheckpointFacts(msgspec.Struct, frozen=True):
    """What plugins are shown in `core_claim`.

    quantization: the method that the checkpoint declares, in its own word, or None.
    declaration: as it stands in the checkpoint, wherever that is; empty without one.
    """

    ref: str
    format: str
    model_type: str
    architectures: tuple[str, ...] = ()
    quantization: str | None = None
    tensor_dtypes: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    declaration: dict[str, Any] = {}


class FileFacts(msgspec.Struct, frozen=True):
    """What loaders are shown in `core_claim`: the reference as given and what lies there.

    path:  absolute path, or None when the reference is no local path. is_directory: whether it is a directory.
    names: file names in the directory (or the file's own name). magic: first 8 bytes of a file.
    """

    ref: str
    path: str | None
    is_directory: bool
    names: tuple[str, ...]
    magic: bytes = b""
