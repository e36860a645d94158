"""Makes the files of this folder with the real trainers, and the digests of the ids that the formats' own packages give.

Needs sentencepiece, tiktoken, mistral-common and tokenizers, which the suite does not: `python make.py` from this folder's
checkout, with the repository's root on PYTHONPATH.
"""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from pathlib import Path

import sentencepiece
import tiktoken
import tokenizers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import models, pre_tokenizers, trainers

from core_runtime.specs.checkpoint import TokenizerSource
from core_tokens.pieces import PRINTABLE_BYTES
from core_tokens.tokenizer import Tokenizer
from core_tokens.vocabularies.sentencepiece_file import read_sentencepiece
from tests.tokenizers.random_texts import digests, random_text, random_texts

HERE = Path(__file__).parent
COUNT = 10_000
KIMI_PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])  # fmt: skip
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = "FF21\t41\nFB01\t66 69\n2460\t31\n3000\t20\nA0\t20\n"
"""A sentencepiece table of rewritten characters, as small as its real ones are large."""


def corpus() -> list[str]:
    source = random.Random(7)
    sentence = "the quick brown fox jumps over lazy dogs and token models of language hello world ing tion"
    words = sentence.split()
    lines = [" ".join(source.choice(words) for _ in range(8)) for _ in range(4000)]
    return lines + [random_text(source) for _ in range(400)]


def train_sentencepiece(folder: str, kind: str, **options: object) -> sentencepiece.SentencePieceProcessor:
    target = HERE / folder
    target.mkdir(exist_ok=True)
    name = "spiece.model" if kind == "unigram" else "tokenizer.model"
    lines = [line.replace("\x00", "").replace("\n", " ") for line in corpus()]
    with (target / name).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, model_type=kind, num_threads=1, minloglevel=2,
            character_coverage=0.98, hard_vocab_limit=False, **options,
        )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(target / name))


def train_ranks() -> dict[bytes, int]:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    ordered = sorted(tokenizer.get_vocab().items(), key=lambda row: row[1])
    merged = [bytes(PRINTABLE_BYTES[c] for c in token) for token, _ in ordered if len(token) > 1]
    tokens = [bytes([byte]) for byte in range(256)] + merged  # mistral-common wants the bytes first
    return {data: rank for rank, data in enumerate(tokens)}


def write_tiktoken(path: Path, ranks: dict[bytes, int]) -> None:
    path.parent.mkdir(exist_ok=True)
    rows = [f"{base64.b64encode(data).decode()} {rank}" for data, rank in ranks.items()]
    path.write_text("\n".join(rows) + "\n")


def write_tekken(path: Path, ranks: dict[bytes, int]) -> None:
    path.parent.mkdir(exist_ok=True)
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(data).decode(), "token_str": data.decode(errors="replace")}
        for data, rank in ranks.items()
    ]
    config = {
        "pattern": TEKKEN_PATTERN,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": 10 + 500,
        "default_num_special_tokens": 10,
        "version": "v7",
    }
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))


def encoding(ranks: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding("tiny", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def find_ties(name: str, rows: list[list[int]], texts: list[str]) -> list[int]:
    """The texts that sentencepiece cuts otherwise than we do although both ways have the same score.

    It adds scores up with 24 bits, the tokenizers library with 53, so that rounding decides between them.
    """
    tokenizer = Tokenizer.from_source(TokenizerSource(directory=str(HERE / name)))
    model = read_sentencepiece(HERE / name / "spiece.model")
    scores = model.scores
    found = []
    for place, (mine, theirs) in enumerate(zip(tokenizer.encode_batch(texts, False), rows, strict=True)):
        if mine != theirs:
            gap = sum(scores[i] for i in mine) - sum(scores[i] for i in theirs)
            assert abs(gap) < 1e-4, (texts[place], gap)
            found.append(place)
    return found


def main() -> None:
    texts = random_texts(COUNT)
    rows: dict[str, list[list[int]]] = {}
    bpe = train_sentencepiece(
        "sentencepiece_bpe", "bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    rows["sentencepiece_bpe"] = [bpe.encode(text) for text in texts]
    (HERE / "rules.tsv").write_text(RULES)
    for folder, has_bytes in (("sentencepiece_unigram", False), ("sentencepiece_unigram_bytes", True)):
        unigram = train_sentencepiece(
            folder, "unigram", vocab_size=700, byte_fallback=has_bytes, normalization_rule_tsv=str(HERE / "rules.tsv"),
            user_defined_symbols=["<sep>"], pad_id=3,
        )  # fmt: skip
        rows[folder] = [unigram.encode(text) for text in texts]
    (HERE / "rules.tsv").unlink()
    ranks = train_ranks()
    write_tiktoken(HERE / "llama3" / "tokenizer.model", ranks)
    rows["llama3"] = encoding(ranks, LLAMA3_PATTERN).encode_ordinary_batch(texts)
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    rows["qwen"] = encoding(ranks, QWEN_PATTERN).encode_ordinary_batch(composed)
    added = {str(len(ranks) + count): {"content": f"<|{name}|>", "special": True}
             for count, name in enumerate(["im_end", "im_user"])}  # fmt: skip
    settings = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added, "eos_token": "<|im_end|>"}
    (HERE / "kimi" / "tokenizer_config.json").write_text(json.dumps(settings))
    rows["kimi"] = encoding(ranks, KIMI_PATTERN).encode_ordinary_batch(texts)
    write_tekken(HERE / "tekken" / "tekken.json", ranks)
    tekken = Tekkenizer.from_file(HERE / "tekken" / "tekken.json")
    rows["tekken"] = [tekken.encode(text, bos=False, eos=False) for text in texts]
    ties = {name: find_ties(name, rows[name], texts) for name in rows if "unigram" in name}
    for name, places in ties.items():
        for place in places:
            rows[name][place] = []
    (HERE / "ties.json").write_text(json.dumps(ties) + "\n")
    expected = {name: digests(found) for name, found in rows.items()}
    lines = [f'"{name}": {json.dumps(found)}' for name, found in expected.items()]
    (HERE / "digests.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
