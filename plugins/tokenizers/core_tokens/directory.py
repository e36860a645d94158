"""Reading of a directory's tokenizer, from any of the known files.

Owns: the choice of the reader, and the parts that each format leaves to code. Never does: parse a format.
Called by: `core_tokens.tokenizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tokenizers

from core.api.errors import CheckpointError
from core_tokens.chat.mistral_template import mistral_template
from core_tokens.chat.templates import Templates, read_templates
from core_tokens.checkpoint_files import MAX_VOCABULARY, inside, read_file
from core_tokens.files import TokenizerFile, find_tokenizer_file
from core_tokens.special_tokens import add_tokens, named_ids, set_asked_ends
from core_tokens.tokenizer_config import read_tokenizer_config, token_text
from core_tokens.tokenizer_source import Vocabulary
from core_tokens.vocabularies.sentencepiece_file import looks_like_sentencepiece, read_sentencepiece
from core_tokens.vocabularies.tiktoken_file import count_tiktoken, read_tekken, read_tiktoken
from core_tokens.vocabularies.vocabulary import build_tokenizer
from core_tokens.vocabularies.vocabulary_files import read_merges, read_wordpiece, tokenizer_class

LLAMA3_TOKENS = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *(
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ),
    "<|python_tag|>",
    *(f"<|reserved_special_token_{count}|>" for count in range(2, 247)),
)
QWEN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{count}|>" for count in range(205)))


class ReadTokenizer(NamedTuple):
    """The tokenizer data of a directory.

    backend: the tokenizer.
    named: id of `bos_token`, `eos_token`, ..., None where there is none.
    templates: chat templates.
    split_special_tokens: special tokens written out in a text are text.
    """

    backend: tokenizers.Tokenizer
    named: dict[str, int | None]
    templates: Templates
    split_special_tokens: bool


def read_tokenizer(path: Path, mode: str = "auto") -> ReadTokenizer:
    """Read the tokenizer of a directory, or of one file in it. mode: see `find_tokenizer_file`. Raises CheckpointError."""
    file = find_tokenizer_file(path, mode)
    directory = file.path.parent
    settings = read_tokenizer_config(directory)
    vocabulary = None
    usual_template = None
    if file.kind == "json":
        backend = _from_json(file.path)
    elif file.kind == "tekken":
        vocabulary, version = read_tekken(file.path)
        usual_template = mistral_template(version)
        backend = _built(file.path, vocabulary)
    else:
        vocabulary = _vocabulary(file, settings)
        backend = _built(file.path, vocabulary)
    add_tokens(backend, settings)
    named = named_ids(backend, settings, vocabulary)
    asks = settings.get("add_bos_token") is not None or settings.get("add_eos_token") is not None
    if asks and vocabulary is not None:
        set_asked_ends(backend, settings, named)
    split = bool(settings.get("split_special_tokens"))
    templates = read_templates(directory, settings)
    if templates.default is None:
        templates = templates._replace(default=usual_template)
    return ReadTokenizer(backend, named, templates, split)


def _from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_buffer(read_file(path, MAX_VOCABULARY))
    except CheckpointError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exception, and PanicException for damaged rules
        raise CheckpointError(f"{path}: cannot be read as a tokenizer ({error}).") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _built(path: Path, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    try:
        return build_tokenizer(vocabulary)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _vocabulary(file: TokenizerFile, settings: Mapping[str, Any]) -> Vocabulary:
    if file.kind == "merges":
        return read_merges(file.path.parent, settings)
    if file.kind == "wordpiece":
        return read_wordpiece(file.path, settings)
    if file.kind == "model" and looks_like_sentencepiece(_beginning(file.path)):
        return _of_class(file.path, read_sentencepiece(file.path), settings)
    return _tiktoken(file.path, settings)


def _beginning(path: Path) -> bytes:
    with inside(path.parent, path.name).open("rb") as file:
        return file.read(16)


def _of_class(path: Path, vocabulary: Vocabulary, settings: Mapping[str, Any]) -> Vocabulary:
    """Return what transformers' class adds to a sentencepiece file: tokens around the text, and when a space is
    prepended.
    """
    if path.name == "sentencepiece.bpe.model":
        raise CheckpointError(
            f"{path}: tokens of models with this file have other ids than the file's. Make a tokenizer.json: "
            "transformers.AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(OTHER), and name it with --tokenizer."
        )
    ends_text = tokenizer_class(settings) == "T5Tokenizer" or path.name == "spiece.model"
    space = settings.get("add_prefix_space")
    return msgspec.structs.replace(
        vocabulary,
        add_bos=vocabulary.bos_token_id is not None and not ends_text,
        add_eos=vocabulary.eos_token_id is not None and ends_text,
        add_space_prefix=vocabulary.add_space_prefix if space is None else bool(space),
        space_prefix_once=settings.get("legacy") is False,
    )


def _tiktoken(path: Path, settings: Mapping[str, Any]) -> Vocabulary:
    name = tokenizer_class(settings)
    declared = {index: str(token_text(row)) for index, row in settings["added_tokens_decoder"].items()}
    usual: tuple[str, ...] = ()
    if name == "QWenTokenizer" or path.name == "qwen.tiktoken":
        pre, usual = "qwen2", QWEN_TOKENS
    elif name == "TikTokenTokenizer":
        pre = "kimi-k2"
    elif path.name.startswith("tokenizer.model"):
        pre, usual = "llama-bpe", LLAMA3_TOKENS
    else:
        raise CheckpointError(
            f"{path}: how '{name or 'its tokenizer'}' splits text is not known; expected QWenTokenizer or TikTokenTokenizer "
            "as tokenizer_class in tokenizer_config.json. Name another tokenizer with --tokenizer."
        )
    if not declared:
        declared = dict(enumerate(usual, start=count_tiktoken(path)))
    vocabulary = read_tiktoken(path, pre, declared)
    begins = vocabulary.tokens.index("<|begin_of_text|>") if "<|begin_of_text|>" in vocabulary.tokens else None
    return msgspec.structs.replace(vocabulary, bos_token_id=begins, add_bos=begins is not None)
