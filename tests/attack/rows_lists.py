"""Too many of something: stop strings, token ids, biases, prompts, choices, entries of objects."""

from typing import Any

from tests.attack.make import chat, completion
from tests.attack.row import Row
from tests.attack.rows_texts import ANY, CHATS, COMPLETIONS, MB, REFUSED, text

MOST_CHOICES = 128


def ids(count: int) -> list[int]:
    """Token ids that every vocabulary has, over and over."""
    return [5 + number % 200 for number in range(count)]


def words(count: int) -> list[str]:
    """Different words."""
    return [f"no{number}" for number in range(count)]


def entries(count: int) -> dict[str, int]:
    """An object with so many entries, whose names are numbers."""
    return {str(number): 1 for number in range(count)}


# (name, field, its value made by, its length, more of the row)
LISTS: list[tuple[str, str, Any, int, dict[str, Any]]] = [
    ("500,000 allowed token ids", "allowed_token_ids", ids, 500_000, {"large": True}),
    ("2,000 stop strings", "stop", words, 2000, {}),
    ("200,000 stop strings", "stop", words, 200_000, {"large": True}),
    ("2,000 bad words", "bad_words", words, 2000, {}),
    ("30,000 bad words", "bad_words", words, 30_000, {"large": True}),
    ("2,000 biases", "logit_bias", entries, 2000, {}),
    ("300,000 biases", "logit_bias", entries, 300_000, {"large": True}),
    ("2,000 stop tokens", "stop_token_ids", ids, 2000, {}),
    ("500,000 stop tokens", "stop_token_ids", ids, 500_000, {"large": True}),
    ("5,000 prompts", "prompt", words, 5000, {}),
    ("300,000 empty prompts", "prompt", lambda count: [[]] * count, 300_000, {"large": True}),
]

OTHERS = [
    Row(
        "500,000 allowed token ids for 128 choices",
        COMPLETIONS,
        lambda: completion(allowed_token_ids=ids(500_000), n=MOST_CHOICES),
        allowed=REFUSED,
        names=("allowed_token_ids",),
        large=True,
    ),
    Row(
        "1,000 allowed token ids for 128 choices",
        COMPLETIONS,
        lambda: completion(allowed_token_ids=ids(1000), n=MOST_CHOICES),
        allowed=ANY,
        names=("allowed_token_ids",),
        work=True,
        seconds=20,
    ),
    Row("a stop string of 1 MB", COMPLETIONS, lambda: completion(stop=text(MB)), allowed=ANY, names=("stop",)),
    Row(
        "a bad word of 1 MB",
        COMPLETIONS,
        lambda: completion(bad_words=[text(MB)]),
        allowed=REFUSED,
        names=("bad_words",),
    ),
    Row(
        "500 prompts",
        COMPLETIONS,
        lambda: completion(prompt=words(500)),
        allowed=ANY,
        work=True,
        seconds=60,
        large=True,
    ),
    Row(
        "500 prompts where 32 may wait",
        COMPLETIONS,
        lambda: completion(prompt=words(500)),
        allowed=REFUSED,
        names=("prompt",),
        setup="queue of 32",
    ),
    Row(
        "1,000 prompts with 128 choices each",
        COMPLETIONS,
        lambda: completion(prompt=words(1000), n=MOST_CHOICES),
        names=("prompt", "n"),
    ),
    Row("2,147,483,647 beams", COMPLETIONS, lambda: completion(n=2**31 - 1, use_beam_search=True), names=("n",)),
    Row("129 beams", COMPLETIONS, lambda: completion(n=129, use_beam_search=True), names=("n", "beam_width")),
    Row(
        "beams in a stream", COMPLETIONS, lambda: completion(n=2, use_beam_search=True, stream=True), names=("stream",)
    ),
    Row(
        "a penalty of text",
        COMPLETIONS,
        lambda: completion(use_beam_search=True, length_penalty="x"),
        names=("length_",),
    ),
    Row("2,147,483,647 choices", COMPLETIONS, lambda: completion(n=2**31 - 1), names=("n",)),
    Row(
        "128 choices of 2,147,483,647 tokens",
        COMPLETIONS,
        lambda: completion(n=MOST_CHOICES, max_tokens=2**31 - 1),
        names=("max_tokens",),
    ),
    Row(
        "128 choices that may fill the context",
        COMPLETIONS,
        lambda: completion(n=MOST_CHOICES, max_tokens=200, timeout=2.0),
        allowed=frozenset({200, 400, 408}),
        names=("max_tokens", "time"),
        work=True,
        seconds=20,
    ),
    Row(
        "metadata with 100,000 entries",
        COMPLETIONS,
        lambda: completion(metadata=entries(100_000)),
        allowed=ANY,
        names=("metadata",),
        large=True,
    ),
    Row(
        "template variables with 100,000 entries",
        CHATS,
        lambda: chat(chat_template_kwargs={f"v{number}": 1 for number in range(100_000)}),
        allowed=ANY,
        names=("chat_template_kwargs",),
        large=True,
    ),
    Row(
        "100,000 documents",
        CHATS,
        lambda: chat(documents=[{"title": "a"}] * 100_000),
        allowed=ANY,
        names=("documents",),
        large=True,
    ),
]


def rows() -> list[Row]:
    """All of this theme."""
    lists = [_list(*row) for row in LISTS]
    return [*lists, *OTHERS]


def _list(name: str, field: str, make: Any, count: int, more: dict[str, Any]) -> Row:
    return Row(
        name,
        COMPLETIONS,
        lambda: completion(**{field: make(count)}),
        allowed=REFUSED,
        names=(field,),
        seconds=2,
        **more,
    )
