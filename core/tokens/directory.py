"""The tokenizer of a directory, whichever files it has.

Owns: the choice of the reader, and what the files beside the vocabulary change. Never does: parse a format.
Called by: `core.tokens.tokenizer`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tokenizers
from tokenizers import AddedToken

from core.api.checkpoint import Vocabulary
from core.api.errors import CheckpointError
from core.tokens.files import TokenizerFile, find_tokenizer_file
from core.tokens.mistral_template import mistral_template
from core.tokens.sentencepiece_file import looks_like_sentencepiece, read_sentencepiece
from core.tokens.templates import Templates, read_templates
from core.tokens.tiktoken_file import count_tiktoken, read_tekken, read_tiktoken
from core.tokens.tokenizer_config import NAMED, read_tokenizer_config, token_text
from core.tokens.vocabulary import build_tokenizer, set_ends
from core.tokens.vocabulary_files import read_merges, read_wordpiece, tokenizer_class

logger = logging.getLogger(__name__)

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
    """What a directory says.

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
    """The tokenizer of a directory, or of one file in it. mode: see `find_tokenizer_file`. Raises CheckpointError."""
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
    _add_tokens(backend, settings)
    named = _named_ids(backend, settings, vocabulary)
    asks = settings.get("add_bos_token") is not None or settings.get("add_eos_token") is not None
    if asks and vocabulary is not None:
        _set_asked_ends(backend, settings, named)
    split = bool(settings.get("split_special_tokens"))
    templates = read_templates(directory, settings)
    if templates.default is None:
        templates = templates._replace(default=usual_template)
    return ReadTokenizer(backend, named, templates, split)


def _from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
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
    with path.open("rb") as file:
        return file.read(16)


def _of_class(path: Path, vocabulary: Vocabulary, settings: Mapping[str, Any]) -> Vocabulary:
    """What transformers' class adds to a sentencepiece file: tokens around the text, and when a space goes before it."""
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


def _add_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Tokens that stand beside the vocabulary, in the order of their ids; the named ones are special."""
    special = _special_texts(settings)
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for index, row in sorted(settings["added_tokens_decoder"].items()):
        text = row["content"]
        if text in known:
            continue
        is_special = bool(row.get("special")) or text in special
        token = _added(row, is_special)
        (backend.add_special_tokens if is_special else backend.add_tokens)([token])
        got = backend.token_to_id(text)
        if got != index:
            logger.warning("The added token %r should have the id %d, and got %s.", text, index, got)
    for text in special:
        if text in known:
            continue
        # As transformers does; one that the vocabulary lacks gets an id of its own, which the model may not have.
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True)])


def _special_texts(settings: Mapping[str, Any]) -> dict[str, None]:
    """The special tokens, each once, in the order in which those that the vocabulary lacks get their ids."""
    others = [key for key in settings if key.endswith("_token") and key not in NAMED]
    texts = [token_text(settings.get(key)) for key in (*NAMED, *others)]
    texts += _listed(settings.get("extra_special_tokens"))
    texts += _listed(settings.get("additional_special_tokens"))
    return dict.fromkeys(text for text in texts if text is not None)


def _added(row: Mapping[str, Any], special: bool) -> AddedToken:
    return AddedToken(
        row["content"],
        single_word=bool(row.get("single_word")),
        lstrip=bool(row.get("lstrip")),
        rstrip=bool(row.get("rstrip")),
        normalized=bool(row.get("normalized", not special)),
        special=special,
    )


def _listed(value: Any) -> Iterable[str]:
    """The texts of further special tokens: a list, or a mapping from names."""
    rows = value.values() if isinstance(value, dict) else value or ()
    return [text for text in map(token_text, rows) if text is not None]


def _named_ids(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], vocabulary: Vocabulary | None
) -> dict[str, int | None]:
    named: dict[str, int | None] = {}
    for key in NAMED:
        text = token_text(settings.get(key))
        named[key] = None if text is None else backend.token_to_id(text)
    if vocabulary is not None:
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            if key not in settings:
                named[key] = getattr(vocabulary, f"{key}_id")
    return named


def _set_asked_ends(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], named: Mapping[str, int | None]
) -> None:
    """`add_bos_token` and `add_eos_token`, once either is given, replace what the format does itself, as in transformers.
    A tokenizer.json says all about it, there too."""
    ends: list[str | None] = []
    for asked, key in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        index = named[key]
        wanted = bool(settings.get(asked)) and index is not None
        ends.append(backend.id_to_token(index) if wanted and index is not None else None)
    bos, eos = ends
    set_ends(backend, bos, eos, bos, eos)
