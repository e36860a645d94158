"""The tokenizer of a GGUF file as data.

Owns: the translation of the `tokenizer.*` metadata. Never does: build a tokenizer (`core.tokens` does).
Called by: the GGUF loader.
"""

from __future__ import annotations

from typing import Any, Literal

from core.api.checkpoint import TokenizerSource, Vocabulary
from core.api.errors import CheckpointError, nearest
from core_plugins.loaders.gguf.metadata import Metadata

MODELS: dict[str, Literal["bpe", "spm"]] = {"gpt2": "bpe", "llama": "spm"}
NO_TOKENIZER = ("none", "no_vocab")
"""What files of models without one say."""
CONTROL = 3
# Tokens that end a turn. Conversions name one end token only, and not always the one that chats end with.
END_OF_TURN = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|end|>")


def read_tokenizer(metadata: Metadata, vocab_size: int) -> TokenizerSource:
    """The vocabulary and the chat template; without a `tokenizer.ggml.model`, no tokenizer. Raises CheckpointError."""
    if "tokenizer.ggml.model" not in metadata:
        return TokenizerSource()
    name = metadata.text("tokenizer.ggml.model")
    if name in NO_TOKENIZER:
        return TokenizerSource()
    if name not in MODELS:
        raise CheckpointError(
            f"{metadata.path}: tokenizer model '{name}' is not supported; expected {' or '.join(MODELS)}."
            f"{nearest(name, MODELS)} Give another one with --tokenizer."
        )
    template = None
    if "tokenizer.chat_template" in metadata:
        template = metadata.text("tokenizer.chat_template")
    model = MODELS[name]
    tokens = metadata.items("tokenizer.ggml.tokens", str, vocab_size)
    vocabulary = Vocabulary(
        model=model,
        tokens=tokens,
        pre=metadata.text("tokenizer.ggml.pre", ""),
        merges=metadata.items("tokenizer.ggml.merges", str, optional=model == "spm"),
        scores=metadata.items("tokenizer.ggml.scores", float, vocab_size, optional=model == "bpe"),
        types=metadata.items("tokenizer.ggml.token_type", int, vocab_size, optional=True),
        bos_token_id=metadata.token("tokenizer.ggml.bos_token_id", vocab_size),
        eos_token_id=metadata.token("tokenizer.ggml.eos_token_id", vocab_size),
        unk_token_id=metadata.token("tokenizer.ggml.unknown_token_id", vocab_size),
        pad_token_id=metadata.token("tokenizer.ggml.padding_token_id", vocab_size),
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token", model == "spm"),
        add_eos=metadata.flag("tokenizer.ggml.add_eos_token", False),
        add_space_prefix=metadata.flag("tokenizer.ggml.add_space_prefix", model == "spm"),
    )
    return TokenizerSource(vocabulary=vocabulary, chat_template=template)


def read_generation(metadata: Metadata, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The style of `generation_config.json`: bos, eos (a list when several tokens end a text) and pad."""
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
    """The tokens that end a text, each once: the file's end tokens, then the known ones that end a turn."""
    ends = [vocabulary.eos_token_id, metadata.token("tokenizer.ggml.eot_token_id", len(vocabulary.tokens))]
    for text in END_OF_TURN:
        ends.append(_control_token(vocabulary, text))
    known = [end for end in ends if end is not None]
    return list(dict.fromkeys(known))


def _control_token(vocabulary: Vocabulary, text: str) -> int | None:
    """The id of `text`, or None when the vocabulary lacks it or does not say that it is a control token."""
    if text not in vocabulary.tokens or not vocabulary.types:
        return None
    index = vocabulary.tokens.index(text)
    return index if vocabulary.types[index] == CONTROL else None
