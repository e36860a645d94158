"""The tokenizer of a GGUF file as data.

Owns: the translation of the `tokenizer.*` metadata. Never does: build a tokenizer (`core_tokens` does).
Called by: the GGUF loader.
"""

from __future__ import annotations

from typing import Any, Literal

from core.api.errors import CheckpointError, nearest
from core_loaders.gguf.metadata import Metadata
from core_runtime.specs.checkpoint import TokenizerSource, Vocabulary

MODELS: dict[str, Literal["bpe", "spm", "unigram", "wordpiece"]] = {
    "gpt2": "bpe",
    "llama": "spm",
    "t5": "unigram",
    "bert": "wordpiece",
}
NONE = ("none", "no_vocab")
NOT_SERVED = {
    "rwkv": "it takes the longest token at every byte, which the tokenizers library does not do",
    "plamo2": "it is a table of its own kind",
    "gemma4": "its merges are over characters and not over bytes",
}
BEGINNING = frozenset(
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken", "chameleon")
)
"""Pre-tokenizers of models whose texts start with a BOS token, for files that do not say."""
SEPARATED = ("jina-v1-en", "jina-v2-code", "roberta-bpe")
"""Pre-tokenizers of models that enclose texts in separators."""
RANKED = ("kimi-k2",)
"""Pre-tokenizers of files without merges: tokens are in the order of tiktoken's ranks."""
PREFIX = "▁"
CONTROL = 3
# Tokens that end a turn. Conversions name only one end token, which is not always the one that ends a chat turn.
END_OF_TURN = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|end|>")


def read_tokenizer(metadata: Metadata, vocab_size: int) -> TokenizerSource:
    """Read the vocabulary and the chat templates; no tokenizer without `tokenizer.ggml.model`. Raises CheckpointError."""
    if "tokenizer.ggml.model" not in metadata:
        return TokenizerSource()
    name = metadata.text("tokenizer.ggml.model")
    if name in NONE:
        return TokenizerSource()
    if name not in MODELS:
        reason = f": {NOT_SERVED[name]}" if name in NOT_SERVED else ""
        raise CheckpointError(
            f"{metadata.path}: tokenizer model '{name}' is not supported{reason}; expected {' or '.join(MODELS)}."
            f"{nearest(name, MODELS)} Give another one with --tokenizer, or serve token ids with --skip-tokenizer-init."
        )
    template = None
    if "tokenizer.chat_template" in metadata:
        template = metadata.text("tokenizer.chat_template")
    vocabulary = _vocabulary(metadata, MODELS[name], vocab_size)
    return TokenizerSource(vocabulary=vocabulary, chat_template=template, named_templates=_named_templates(metadata))


def _named_templates(metadata: Metadata) -> dict[str, str]:
    """Return the additional templates by name, as listed in `tokenizer.chat_templates`."""
    named: dict[str, str] = {}
    for name in metadata.items("tokenizer.chat_templates", str, optional=True):
        named[name] = metadata.text(f"tokenizer.chat_template.{name}")
    return named


def _vocabulary(
    metadata: Metadata, model: Literal["bpe", "spm", "unigram", "wordpiece"], vocab_size: int
) -> Vocabulary:
    prefix = "tokenizer.ggml"
    pre = metadata.text(f"{prefix}.pre", "")
    tokens = metadata.items(f"{prefix}.tokens", str, vocab_size)
    is_bert = model == "wordpiece"
    begins = model == "spm" or is_bert or pre in BEGINNING
    # Files use an old spelling of `separator`.
    separator = metadata.token(f"{prefix}.seperator_token_id", vocab_size)
    has_separator = is_bert or pre in SEPARATED
    merges = metadata.items(f"{prefix}.merges", str, optional=model != "bpe" or pre in RANKED)
    space = metadata.flag(f"{prefix}.add_space_prefix", model == "spm")
    return Vocabulary(
        model=model,
        tokens=_bert_tokens(tokens) if is_bert else tokens,
        pre=pre if model == "bpe" else "",
        merges=merges,
        scores=_scores(metadata, model, vocab_size, ranked=not merges and pre in RANKED),
        types=metadata.items(f"{prefix}.token_type", int, vocab_size, optional=True),
        bos_token_id=_begin(metadata, vocab_size, is_bert=is_bert),
        eos_token_id=metadata.token(f"{prefix}.eos_token_id", vocab_size),
        unk_token_id=metadata.token(f"{prefix}.unknown_token_id", vocab_size),
        pad_token_id=metadata.token(f"{prefix}.padding_token_id", vocab_size),
        sep_token_id=separator,
        add_bos=metadata.flag(f"{prefix}.add_bos_token", begins),
        add_eos=metadata.flag(f"{prefix}.add_eos_token", model == "unigram"),
        add_sep=metadata.flag(f"{prefix}.add_sep_token", has_separator and separator is not None),
        add_space_prefix=space and model != "bpe",
        charsmap=_charsmap(metadata, f"{prefix}.precompiled_charsmap"),
        remove_extra_whitespaces=metadata.flag(f"{prefix}.remove_extra_whitespaces", False),
        lowercase=metadata.flag(f"{prefix}.normalizer.lowercase", True),
        strip_accents=_accents(metadata, f"{prefix}.normalizer.strip_accents"),
    )


def _begin(metadata: Metadata, vocab_size: int, *, is_bert: bool) -> int | None:
    """Return the token that starts a text; BERT's may have its own key."""
    token = metadata.token("tokenizer.ggml.bos_token_id", vocab_size)
    if token is None and is_bert:
        return metadata.token("tokenizer.ggml.cls_token_id", vocab_size)
    return token


def _scores(metadata: Metadata, model: str, vocab_size: int, *, ranked: bool) -> list[float]:
    """Return the scores of all tokens. ranked: a vocabulary without merges is in the order of its ranks."""
    found = metadata.items("tokenizer.ggml.scores", float, vocab_size, optional=model in ("bpe", "wordpiece"))
    if model == "bpe" and ranked:
        return [-float(rank) for rank in range(vocab_size)]
    return found


def _accents(metadata: Metadata, key: str) -> bool | None:
    return metadata.flag(key, True) if key in metadata else None


def _charsmap(metadata: Metadata, key: str) -> bytes:
    """Return the normalization rules, stored as a list of signed or unsigned bytes."""
    values = metadata.items(key, int, optional=True)
    if any(not -128 <= value <= 255 for value in values):
        raise CheckpointError(f"{metadata.path}: metadata key '{key}' holds numbers that are no bytes.")
    return bytes(value & 0xFF for value in values)


def _bert_tokens(tokens: list[str]) -> list[str]:
    """Convert tokens back to BERT's spelling: these files mark the first piece of a word (`▁`), BERT the later ones
    (`##`).
    """
    found = []
    for token in tokens:
        is_named = token.startswith("[") and token.endswith("]")
        if token.startswith(PREFIX):
            found.append(token.removeprefix(PREFIX))
        else:
            found.append(token if is_named else f"##{token}")
    return found


def read_generation(metadata: Metadata, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Return generation defaults in the style of `generation_config.json`: bos, eos (a list when several tokens end a
    text) and pad.
    """
    if vocabulary is None:
        return {}
    ends = _end_tokens(metadata, vocabulary)
    generation = {
        "bos_token_id": vocabulary.bos_token_id,
        "pad_token_id": vocabulary.pad_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    return {key: value for key, value in generation.items() if value is not None}


def _end_tokens(metadata: Metadata, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end a text, each once: the file's end tokens, then known ones that end a turn."""
    ends = [vocabulary.eos_token_id, metadata.token("tokenizer.ggml.eot_token_id", len(vocabulary.tokens))]
    for text in END_OF_TURN:
        ends.append(_control_token(vocabulary, text))
    known = [end for end in ends if end is not None]
    return list(dict.fromkeys(known))


def _control_token(vocabulary: Vocabulary, text: str) -> int | None:
    """Return the id of `text`; None when the vocabulary lacks it or does not mark it as a control token."""
    if text not in vocabulary.tokens or not vocabulary.types:
        return None
    index = vocabulary.tokens.index(text)
    return index if vocabulary.types[index] == CONTROL else None
