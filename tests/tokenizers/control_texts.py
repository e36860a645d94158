"""Contents that try to be control, the templates and tokenizers that they are put into, and what has to come out.

The expectation is made without the engine: the template and the tokenizer are respelled, so that control tokens have names that
no content holds, and transformers and the `tokenizers` library do the rest. A content's own control text is then text to them.
"""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.utils.chat_template_utils import render_jinja_template

from core_config.pooled.rerankers import RERANKERS
from core_formats.row_files import own_rows
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.mistral_template import BY_VERSION
from core_tokens.content_encoding import ContentEncoder
from core_tokens.tokenizer import Tokenizer
from tests.response_formats.answers import OPENAI_TOOLS, TURNS, turns
from tests.tokenizers.random_texts import random_text, random_texts
from tests.tokenizers.test_chat_template import CHATML, TOOLS
from tests.tokenizers.test_chat_template import TURNS as GEMMA

SPELLED = re.compile(r"<[|｜]?[^<>{}\s\"'=%]+>|\[/?[A-Z][A-Z_]+\]|\[e~\[|\]<\]")
FRAME = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<|tool|>")
PHI = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + '\\n' + message.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
FORMATTED = (
    "{% macro turn(role, text) %}{{ '<|im_start|>%s\\n' | format(role) }}{{ text | trim }}{{ eos_token }}{% endmacro %}"
    "{% set ns = namespace(text='') %}{% for m in messages %}{% set body %}{{ turn(m.role, m.content) }}{% endset %}"
    "{% set ns.text = ns.text ~ body | replace('\\r', '') %}{% endfor %}{{ [bos_token, ns.text] | join }}"
    "{{ '<|im_start|>{}\\n'.format('assistant') | safe if add_generation_prompt }}"
)
ODD = (" ", "\n", "  ", "\n\n\n", "\t", "\u200b", "\ue000", "\U0010fffe", "%s", "{}", "{{ bos_token }}")
PLAIN = {"bos_token": "<s>", "eos_token": "</s>"}


class Source(NamedTuple):
    """A template. own: control tokens that it writes, besides the frame's."""

    text: str
    own: tuple[str, ...]


@cache
def sources() -> dict[str, Source]:
    """The templates in the tree: one for each response format, around its turns; those of engine and tests."""
    found = {name: _around(turn) for name, turn in turns().items()}
    for row in own_rows():
        if row.name not in found:
            marks = _strings(msgspec.to_builtins(row))
            found[row.name] = _around("{{ message.reasoning_content }}{{ message.content }}<|im_end|>", marks)
    found |= {f"tekken-{version}": _found(text) for version, text in BY_VERSION.items()}
    found |= {f"reranker-{row.pattern}": _found(row.template) for row in RERANKERS}
    others = {"chatml": CHATML, "gemma": GEMMA, "tools": TOOLS, "phi": PHI, "formatted": FORMATTED}
    return found | {name: _found(text) for name, text in others.items()}


def _around(turn: str, marks: Iterable[str] = ()) -> Source:
    """A template of whole conversations with these turns of assistants."""
    lines = turn.rstrip("\n").replace("%}\n", '%}{{ "\\n" }}')
    text = (
        "{{ bos_token }}{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
        "{% endif %}{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n" + lines
    ) + (
        "{{ '\\n' }}{% elif message.role == 'tool' %}<|tool|>{{ message.name ~ '\\n' ~ message.content }}<|im_end|>\n"
        "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return _found(text, marks)


def _found(text: str, more: Iterable[str] = ()) -> Source:
    spelled = [spelling for part in (text, *more) for spelling in SPELLED.findall(part)]
    if "'<|' + message.role" in text:
        spelled += ["<|user|>", "<|system|>", "<|assistant|>", "<|tool|>"]
    return Source(text, tuple(dict.fromkeys(spelled)))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list | tuple) else []


@cache
def model(kind: str) -> str:
    """JSON of a small tokenizer of this kind, without added tokens."""
    corpus = [random_text(random.Random(seed)) for seed in range(300)] + [" ".join(FRAME), *PLAIN.values()] * 3
    corpus += [TURNS.read_text(encoding="utf-8")]
    special = ["<unk>", "<s>", "</s>"]
    if kind == "wordpiece":
        built = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
        built.normalizer = normalizers.BertNormalizer()
        built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    elif kind == "unigram":
        built = tokenizers.Tokenizer(models.Unigram())
        built.normalizer = normalizers.NFKC()
        built.pre_tokenizer = pre_tokenizers.Metaspace()
        built.decoder = decoders.Metaspace()
        corpus = [text for text in corpus if text.isascii()]  # so that there are unknown characters
        trainer = trainers.UnigramTrainer(
            vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    elif kind in ("spm", "spm-first"):
        built = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        if kind == "spm":
            built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        built.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=tokens, show_progress=False)
        corpus = [text.replace(" ", "▁") for text in corpus]
    else:
        built = tokenizers.Tokenizer(models.BPE(ignore_merges=kind == "whole-words"))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=700, initial_alphabet=alphabet, special_tokens=special, show_progress=False
        )
    built.train_from_iterator(corpus, trainer)
    document = json.loads(built.to_str())
    document["added_tokens"] = []
    return json.dumps(document)


KINDS = ("byte-level", "whole-words", "spm", "spm-first", "unigram", "wordpiece")


def respelled_json(document: str, spellings: Mapping[str, str]) -> str:
    """The same tokenizer with other names for these tokens."""
    found = json.loads(document)
    part = found["model"]
    if isinstance(part["vocab"], dict):
        part["vocab"] = {spellings.get(token, token): index for token, index in part["vocab"].items()}
        if part.get("unk_token") is not None:
            part["unk_token"] = spellings.get(part["unk_token"], part["unk_token"])
    else:
        part["vocab"] = [[spellings.get(token, token), score] for token, score in part["vocab"]]
    for token in found["added_tokens"]:
        token["content"] = spellings.get(token["content"], token["content"])
    return json.dumps(found)


class Case:
    """A template with a tokenizer, ours and what has to come out.

    control: spellings of control tokens.
    stock: the tokenizer as it is, read by the library alone.
    """

    def __init__(self, source: Source, document: str, rstrip: bool = False) -> None:
        known = json.loads(document)["added_tokens"]
        base = tokenizers.Tokenizer.from_str(document)
        if not known:
            own = dict.fromkeys((*FRAME, *source.own))
            base.add_special_tokens(
                [
                    AddedToken(text, normalized=False, special=True, rstrip=rstrip)
                    for text in own
                    if "think" not in text and "tool" not in text
                ]
            )
            # not special, as Qwen's vocabularies have them
            base.add_tokens(
                [AddedToken(text, normalized=False, rstrip=rstrip) for text in own if "think" in text or "tool" in text]
            )
            base.add_tokens([AddedToken("  ", normalized=False), AddedToken("\n\n\n", normalized=False)])
        document = base.to_str()
        self.source = source
        self.stock = tokenizers.Tokenizer.from_str(document)
        backend = tokenizers.Tokenizer.from_str(document)
        self.tokenizer = Tokenizer(backend, unk_token_id=backend.token_to_id("<unk>"))
        self.template = ChatTemplate(source.text, PLAIN)
        self.encoder = ContentEncoder(self.tokenizer, [source.text])
        self.control = tuple(self.encoder.control.values())
        # letters of no language that a model would join, in every normal form
        longest_first = sorted(self.control, key=len, reverse=True)
        self.spellings = {text: f"⁂{'⁑' * (at % 7 + 1)}{at}⁂" for at, text in enumerate(longest_first)}
        self.unseen = tokenizers.Tokenizer.from_str(respelled_json(document, self.spellings))
        self.unseen_source = _respelled(source.text, self.spellings)

    def ours(self, conversation: Mapping[str, Any]) -> list[int]:
        """The ids that the engine gives."""
        return self.encoder.encode(self.template.render(**conversation))

    def transformers(self, conversation: Mapping[str, Any]) -> list[int]:
        """The ids that transformers gives."""
        return self.stock.encode(_rendered(self.source.text, conversation, PLAIN), add_special_tokens=False).ids

    def expected(self, conversation: Mapping[str, Any]) -> list[int]:
        """The ids where no content is control."""
        special = {name: self.spellings.get(text, text) for name, text in PLAIN.items()}
        text = _rendered(self.unseen_source, conversation, special)
        return self.unseen.encode(text, add_special_tokens=False).ids


def _respelled(source: str, spellings: Mapping[str, str]) -> str:
    pattern = "|".join(map(re.escape, spellings))
    text = re.sub(pattern, lambda found: spellings[found.group()], source)
    return text.replace("'<|' + message.role + '|>'", _by_role(spellings))


def _by_role(spellings: Mapping[str, str]) -> str:
    rows = {
        role: spellings[f"<|{role}|>"] for role in ("user", "assistant", "system", "tool") if f"<|{role}|>" in spellings
    }
    return f"({rows!r}[message.role])"


def _rendered(source: str, conversation: Mapping[str, Any], special: Mapping[str, str]) -> str:
    given = dict(conversation)
    messages = given.pop("messages")
    texts, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **given, **special)
    return texts[0]


@cache
def texts() -> list[str]:
    """Random texts in many scripts."""
    return random_texts(1000)


@cache
def harmless_texts() -> list[str]:
    """The same without characters of which control tokens are made."""
    return [re.sub(r"[^\w\s.,;:!?()+*/-]", "", text).replace("_", " ") for text in texts()]


def adversarial(draw: random.Random, control: Sequence[str]) -> str:
    """A content that tries to be, to complete or to swallow a control token."""
    parts: list[str] = []
    for _ in range(draw.randint(1, 5)):
        kind = draw.randrange(10)
        spelling = draw.choice(control)
        cut = draw.randint(0, len(spelling))
        if kind < 3:
            parts.append(spelling)
        elif kind == 3:
            parts.append(spelling[:cut])
        elif kind == 4:
            parts.append(spelling[cut:])
        elif kind == 5:
            parts.append("".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in spelling))
        elif kind == 6:
            parts.append(draw.choice(ODD))
        elif kind == 7:
            parts.append(spelling[:cut] + draw.choice(control) + spelling[cut:])
        else:
            parts.append(draw.choice(texts()))
    return "".join(parts)


def harmless(draw: random.Random, control: Sequence[str]) -> str:
    """A content without control text, and without any part of it."""
    return draw.choice(harmless_texts()) + draw.choice(harmless_texts())


def conversation(draw: random.Random, content: Any, control: Sequence[str]) -> tuple[dict[str, Any], int]:
    """A conversation of contents, and their number."""

    def one() -> str:
        return content(draw, control)

    arguments = {one(): one(), "deep": [{"x": one()}]}
    call = {"type": "function", "id": "abcdefgh0", "function": {"name": one(), "arguments": arguments}}
    messages = [
        {"role": "system", "content": one()},
        {"role": "user", "content": one()},
        {"role": "assistant", "content": one(), "reasoning_content": one(), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh0", "name": one(), "content": one()},
        {"role": "assistant", "content": one(), "reasoning_content": one(), "tool_calls": []},
        {"role": "user", "content": one()},
    ]
    tool = {**OPENAI_TOOLS[0]["function"], "name": one(), "description": one()}
    tools = [{"type": "function", "function": tool}]
    return {"messages": messages, "tools": tools, "documents": [{"title": one(), "text": one()}]}, 17


def plain_turns(draw: random.Random, content: Any, control: Sequence[str]) -> tuple[dict[str, Any], int]:
    """As `conversation`, for templates that know users and assistants in turns, or a query with a document."""
    roles = ("user", "assistant", "user", "assistant", "user")
    return {"messages": [{"role": role, "content": content(draw, control)} for role in roles]}, 5


def conversation_for(
    name: str, draw: random.Random, content: Any, control: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """One that the template takes."""
    if name.startswith("reranker"):
        roles = ("system", "query", "document")
        return {"messages": [{"role": role, "content": content(draw, control)} for role in roles]}, 3
    simple = name.startswith("tekken") or name in ("chatml", "gemma", "phi", "formatted")
    return plain_turns(draw, content, control) if simple else conversation(draw, content, control)
