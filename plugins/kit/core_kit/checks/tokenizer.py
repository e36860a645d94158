"""Checks of tokenizers: texts and their tokens, the bytes of tokens, what is released token by token, control tokens.

Owns: the checks. Never does: know how a tokenizer works. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from core.api.errors import PluginError, RequestError
from core.plugin.table import load_plugin
from core_kit.case import Failure, Skipped, Subject
from core_tokens.content_encoding import ContentEncoder
from core_tokens.detokenizer import IncrementalDetokenizer
from core_tokens.plugged import Plug
from core_tokens.tokenizer import Tokenizer
from core_tokens.tokenizer_source import TokenizerSource

TEXTS: Final = (
    *("a", "Hello, world!", "  two  spaces ", "\n\n\tdef f(x):\n\treturn x\n", "1234567890", "ÄÖÜ ß é", "你好，世界"),
    *("🙂👩‍👩‍👧‍👦 🏳️‍🌈", "e\u0301 \u200b\ufeff", "שלום عليكم", "a" * 500, " ", "\x00\x7f"),
)
"""Plain texts: scripts, spaces, joined emojis, combining and invisible characters, control characters."""
NUM_RANDOM: Final = 40
LETTERS: Final = "aZ 0_-.,\n\té☃你🙂<|>[]{}"


def names_its_tokens(subject: Subject) -> None:
    """Its ids, control tokens, ends and names fit together, and every id has bytes."""
    _tokenizer(subject)


def has_an_identity(subject: Subject) -> None:
    """The identity is the same when the tokenizer is built again."""
    again = load_plugin(subject.manifest, subject.context()).identity
    if again != subject.loaded.identity:
        raise Failure(
            f"identity is {subject.loaded.identity[:60]!r}, then {again[:60]!r}: kept prompts would not be found"
        )


def encodes_every_text(subject: Subject) -> None:
    """Every text has tokens, which are ids of text; an empty one has none."""
    tokenizer = _tokenizer(subject)
    if list(subject.loaded.encode("")):
        raise Failure("encode('') returned tokens; the engine adds those of `ends`")
    for text in _texts():
        if not _encoded(tokenizer, text):
            raise Failure(f"encode({text!r:.60}) returned no tokens")


def gives_the_text_again(subject: Subject) -> None:
    """The bytes of a text's tokens are the text, unless it has spans of its own."""
    tokenizer = _tokenizer(subject)
    if hasattr(subject.loaded, "spans"):
        raise Skipped("it changes texts, and has spans for that")
    for text in _texts():
        ids = _encoded(tokenizer, text)
        shown = tokenizer.decode(ids)
        if shown != text:
            raise Failure(f"the tokens of {text!r:.60} spell {shown!r:.60}")


def has_spans(subject: Subject) -> None:
    """Every token has a span of its text, in order."""
    tokenizer = _tokenizer(subject)
    for text in _texts():
        spans = _spans(tokenizer, text)
        last = 0
        for start, end in spans:
            if not last <= start <= end <= len(text):
                raise Failure(f"spans of {text!r:.40}: ({start}, {end}) follows {last}, in {len(text)} characters")
            last = start
        covered = {at for start, end in spans for at in range(start, end)}
        missed = [at for at, letter in enumerate(text) if at not in covered and not letter.isspace()]
        if missed:
            raise Failure(f"spans of {text!r:.40}: no token covers the character {text[missed[0]]!r}")


def is_released_token_by_token(subject: Subject) -> None:
    """An answer's text is the same token by token, whole characters only, also for ids in any order."""
    tokenizer = _tokenizer(subject)
    noise = random.Random(0)
    samples = [_encoded(tokenizer, text) for text in _texts()]
    samples += [[noise.randrange(tokenizer.vocab_size) for _ in range(30)] for _ in range(NUM_RANDOM)]
    for ids in samples:
        whole = tokenizer.decode(ids)
        stream = IncrementalDetokenizer(tokenizer)
        pieces = [stream.push([index]) for index in ids]
        shown = "".join(pieces) + stream.flush()
        if shown != whole:
            raise Failure(f"tokens {ids[:8]}… are {whole!r:.60} together and {shown!r:.60} one by one")


def keeps_control_tokens_apart(subject: Subject) -> None:
    """A control token in a prompt is one token, and in a message text that looks like one."""
    control = dict(subject.loaded.control)
    if not control:
        raise Skipped("it has no control tokens")
    tokenizer = _tokenizer(subject)
    for spelled, index in control.items():
        ids = tokenizer.encode(f"a{spelled}b", add_special_tokens=False)
        if ids.count(index) != 1:
            raise Failure(f"{spelled!r} in a prompt is {ids}, expected its id {index} once")
        ids = ContentEncoder.of(tokenizer).encode(f"a{spelled}b")
        if set(ids) & set(control.values()):
            raise Failure(f"{spelled!r} in a message is {ids}, which has the control token {index}")
        if index not in tokenizer.special_ids or tokenizer.decode([index]):
            raise Failure(f"{spelled!r} is shown in answers, although it is a control token")


def answers_threads_alike(subject: Subject) -> None:
    """Several threads that encode at once get what one gets."""
    tokenizer = _tokenizer(subject)
    texts = list(_texts())
    alone = [tokenizer.encode_batch([text]) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            if list(pool.map(tokenizer.encode_batch, [[text] for text in texts])) != alone:
                raise Failure("a text had other tokens while other threads encoded, too")


def crosses_processes(subject: Subject) -> None:
    """A helper process builds the same tokenizer from what it is sent."""
    tokenizer = _tokenizer(subject)
    other = Tokenizer.restore(tokenizer.snapshot)
    for text in _texts():
        if other.encode(text) != tokenizer.encode(text):
            raise Failure(f"the tokens of {text!r:.60} are others in a helper process")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    names_its_tokens,
    has_an_identity,
    encodes_every_text,
    gives_the_text_again,
    has_spans,
    is_released_token_by_token,
    keeps_control_tokens_apart,
    answers_threads_alike,
    crosses_processes,
)


def _tokenizer(subject: Subject) -> Tokenizer:
    """Return the engine's tokenizer over the plugin. Raises Failure for what cannot be used."""
    assert subject.loaded is not None
    options = subject.context().options
    source = TokenizerSource(directory=options["directory"])
    try:
        return Tokenizer.from_source(source, plug=Plug(subject.row, dict(subject.arguments)))
    except PluginError as error:
        raise Failure(str(error)) from error


def _texts() -> Iterator[str]:
    """Yield plain texts, and random ones of letters that formats stumble over."""
    yield from TEXTS
    noise = random.Random(1)
    for _ in range(NUM_RANDOM):
        yield "".join(noise.choice(LETTERS) for _ in range(noise.randint(1, 24)))


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except (PluginError, RequestError) as error:
        raise Failure(f"the text {text!r:.60}: {error}") from error


def _spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    before, after = len(tokenizer.backend.ends.before), len(tokenizer.backend.ends.after)
    try:
        spans = tokenizer.spans(text)
    except PluginError as error:
        raise Failure(f"the text {text!r:.60}: {error}") from error
    return spans[before : len(spans) - after]
