"""The ways in which byte-level BPE vocabularies split text before merging: one row a `pre` name of GGUF files.

Owns: the table. Never does: build a whole tokenizer. Called by: `core.tokens.vocabulary`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to split.

    pattern: regular expression whose matches are the pieces; empty for GPT-2's own.
    single_digits: digits are split off one by one first.
    whole_words: a piece that is itself a token is taken without merging.
    compose: text is brought to Unicode's composed form (NFC) first.
    """

    pattern: str = ""
    single_digits: bool = False
    whole_words: bool = False
    compose: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer, mapping bytes to printable characters at the end."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """The normalizer, if the vocabulary was trained with one."""
        return normalizers.NFC() if self.compose else None


GPT2 = PreTokenizer()
DIGITS = PreTokenizer(single_digits=True)
LLAMA3 = PreTokenizer(rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}", whole_words=True)
QWEN2 = PreTokenizer(rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{SYMBOLS}|{SPACES}", compose=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "": GPT2,
    "default": GPT2,
    "gpt-2": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "codeshell": DIGITS,
    "command-r": DIGITS,
    "exaone": DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "falcon3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}
