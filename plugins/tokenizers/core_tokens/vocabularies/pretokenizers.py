"""Pre-tokenizers of byte-level BPE vocabularies: one row per `pre` name of GGUF files.

Owns: the table. Never does: build a whole tokenizer. Called by: `core_tokens.vocabularies.byte_level`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LINE_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
ASCII_MARKS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A way to split text before merging.

    patterns: regular expressions; the matches of each are pieces, and so is the text between them. None: GPT-2's own.
    single_digits: digits are split off one by one first.
    whole_words: a piece that is itself a token is kept without merging.
    compose: text is brought to Unicode's composed form (NFC) first.
    """

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    whole_words: bool = False
    compose: bool = False

    def build(self, add_prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
        """Build the pre-tokenizer, which maps bytes to printable characters at the end."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        for pattern in self.patterns:
            steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
        last = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=not self.patterns)
        steps.append(last)
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normalizer, if the vocabulary was trained with one."""
        return normalizers.NFC() if self.compose else None


def _cased(end: str, digits: str) -> str:
    """Return the pattern of GPT-4o and its relatives, which also splits between lower and upper case.

    end: what may follow a word.
    digits: how many form one piece.
    """
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{UPPER}*{LOWER}+{end}|{before}{UPPER}+{LOWER}*{end}"
    return rf"{words}|{digits}|{LINE_SYMBOLS}|{SPACES}"


def _without_han(characters: str) -> str:
    return rf"[{characters[1:-1]}&&[^\p{{Han}}]]"


def _kimi() -> str:
    """Return Moonshot's pattern: that of GPT-4o, with Chinese characters separated."""
    before = r"[^\r\n\p{L}\p{N}]?"
    upper = _without_han(UPPER)
    lower = _without_han(LOWER)
    end = f"{CONTRACTIONS}?"
    words = rf"{before}{upper}*{lower}+{end}|{before}{upper}+{lower}*{end}"
    return rf"[\p{{Han}}]+|{words}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}"


def _deepseek(last: str) -> tuple[str, ...]:
    cjk = "[一-龥\u3040-ゟ゠-ヿ]+"
    words = rf"{ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return (r"\p{N}{1,3}", cjk, rf"{words}| ?[\p{{P}}\p{{S}}]+{last}")


GPT2 = PreTokenizer()
DIGITS = PreTokenizer(single_digits=True)
LLAMA3 = PreTokenizer((rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}",), whole_words=True)
CHATGLM4 = PreTokenizer(LLAMA3.patterns)
QWEN2 = PreTokenizer((rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{SYMBOLS}|{SPACES}",), compose=True)
PLAIN_QWEN2 = PreTokenizer(QWEN2.patterns)
QWEN35 = PreTokenizer(
    (rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}",),
    compose=True,
)
GPT4O = PreTokenizer((_cased(f"{CONTRACTIONS}?", r"\p{N}{1,3}"),))
TEKKEN = PreTokenizer((_cased("", r"\p{N}"),), whole_words=True)
KIMI = PreTokenizer((_kimi(),), whole_words=True)
TINY_AYA = PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *GPT4O.patterns))
DEEPSEEK3 = PreTokenizer(_deepseek(rf"[\r\n]*|{SPACES}"))
DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"))
FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"))
BLOOM = PreTokenizer((r" ?[^(\s|.,!?…。，、।۔،)]+",))
VIKING = PreTokenizer((*BLOOM.patterns, r"\p{N}"))
BAILING = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
SEED_CODER = PreTokenizer((rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}",))
EXAONE_MOE = PreTokenizer(
    (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)

ROWS: tuple[tuple[PreTokenizer, str], ...] = (
    (GPT2, "default gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat"),
    (GPT2, "a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4"),
    (DIGITS, "smollm starcoder refact codeshell command-r exaone minerva-7b mellum2"),
    (LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (CHATGLM4, "glm4 chatglm-bpe dbrx smaug-bpe"),
    (QWEN2, "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez"),
    (PLAIN_QWEN2, "stablelm2 hunyuan solar-open grok-2"),
    (QWEN35, "qwen35"),
    (GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (TEKKEN, "tekken"),
    (KIMI, "kimi-k2"),
    (TINY_AYA, "tiny_aya cohere2moe"),
    (DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (DEEPSEEK_CODER, "deepseek-coder"),
    (FALCON, "falcon"),
    (BLOOM, "poro-chat bloom gpt3-finnish"),
    (VIKING, "viking"),
    (BAILING, "bailingmoe bailingmoe2 llada-moe"),
    (SEED_CODER, "seed-coder"),
    (EXAONE_MOE, "exaone-moe"),
)


def _by_name() -> dict[str, PreTokenizer]:
    table = {"": GPT2}
    for row, names in ROWS:
        for name in names.split():
            table[name] = row
    return table


PRE_TOKENIZERS: dict[str, PreTokenizer] = _by_name()
