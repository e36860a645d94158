"""JSON that is odd in itself: depth, numbers, strings, keys; and values that only together make no sense."""

import json
from typing import Any

from tests.attack.make import CHAT, COMPLETION, chat, completion, nested, with_raw
from tests.attack.row import KEY, Row
from tests.attack.rows_texts import ANY, CHATS, COMPLETIONS

FINE = frozenset({200})
EITHER = frozenset({200, 400})
DEPTHS = (900, 100_000)
SURROGATE = '"a\\ud800b"'
NUMBERS = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0.0", "1e308", "5e-324"]
INTEGERS = ["-1", "-2147483649", "2147483648", "-9223372036854775809", "18446744073709551616", "1" + "0" * 5000]

# (where the nesting is, path, the field, the text around it, the request it belongs to)
PLACES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("a message", CHATS, "messages", '[{"role": "user", "content": "Hi", "x": %s}]', CHAT),
    ("a message's content", CHATS, "messages", '[{"role": "user", "content": %s}]', CHAT),
    ("documents", CHATS, "documents", '[{"a": %s}]', CHAT),
    ("chat_template_kwargs", CHATS, "chat_template_kwargs", '{"a": %s}', CHAT),
    ("metadata", CHATS, "metadata", "%s", CHAT),
    ("the user", COMPLETIONS, "user", "%s", COMPLETION),
    ("the prompt", COMPLETIONS, "prompt", "%s", COMPLETION),
    ("response_format", COMPLETIONS, "response_format", '{"type": "text", "a": %s}', COMPLETION),
    ("an unknown field", COMPLETIONS, "unheard_of", "%s", COMPLETION),
    ("the stop strings", COMPLETIONS, "stop", "%s", COMPLETION),
]

# (name, path, body, statuses, what the error names)
ODD: list[tuple[str, str, bytes, frozenset[int], tuple[str, ...]]] = [
    ("an empty body", COMPLETIONS, b"", frozenset({400}), ("body", "JSON")),
    ("a body of spaces", COMPLETIONS, b"   ", frozenset({400}), ("body", "JSON")),
    ("null", COMPLETIONS, b"null", frozenset({400}), ()),
    ("a list", COMPLETIONS, b"[]", frozenset({400}), ()),
    ("half a body", COMPLETIONS, b'{"prompt": "Hi"', frozenset({400}), ("JSON",)),
    ("two bodies", COMPLETIONS, b"{}{}", frozenset({400}), ("JSON",)),
    ("a byte order mark", COMPLETIONS, b"\xef\xbb\xbf" + completion(), EITHER, ("JSON",)),
    ("UTF-16", COMPLETIONS, completion().decode().encode("utf-16"), frozenset({400}), ("JSON",)),
    ("bytes that are no UTF-8", COMPLETIONS, b'{"prompt": "\xff\xfe"}', frozenset({400}), ("UTF-8", "JSON")),
    ("an overlong UTF-8 slash", COMPLETIONS, b'{"prompt": "\xc0\xaf"}', frozenset({400}), ("UTF-8", "JSON")),
    ("a NUL in the prompt", COMPLETIONS, completion(prompt="a\0b"), EITHER, ("prompt",)),
    ("the same field twice", COMPLETIONS, with_raw("max_tokens", '1, "max_tokens": 2'), EITHER, ()),
    ("a field of another spelling", COMPLETIONS, completion(Prompt="Hi"), frozenset({400}), ("Prompt",)),
    ("a comment", COMPLETIONS, b'{"prompt": "Hi" /* no */}', frozenset({400}), ("JSON",)),
    ("__proto__", COMPLETIONS, completion(__proto__={}), frozenset({400}), ("__proto__",)),
    ("a request id that ends a line", COMPLETIONS, completion(request_id="abc\n"), frozenset({400}), ("request_id",)),
    (
        "a request id of control letters",
        COMPLETIONS,
        completion(request_id="\x1b[31m"),
        frozenset({400}),
        ("request_id",),
    ),
    ("a request id outside ASCII", COMPLETIONS, completion(request_id="ü" * 20), EITHER, ("request_id",)),
    ("a tiny repetition penalty", COMPLETIONS, completion(repetition_penalty=1e-300), EITHER, ("repetition_penalty",)),
    ("a huge repetition penalty", COMPLETIONS, completion(repetition_penalty=1e300), EITHER, ("repetition_penalty",)),
    ("a tiny temperature", COMPLETIONS, completion(temperature=5e-324), EITHER, ("temperature",)),
    ("a huge temperature", COMPLETIONS, completion(temperature=1e308), EITHER, ("temperature",)),
    ("a tiny top_p", COMPLETIONS, completion(temperature=1, top_p=5e-324), EITHER, ("top_p",)),
    (
        "a stop token that alone is allowed, and a least number of tokens",
        COMPLETIONS,
        completion(allowed_token_ids=[2], stop_token_ids=[2], min_tokens=2),
        frozenset({400}),
        ("min_tokens", "allowed_token_ids"),
    ),
    (
        "an end of sequence that alone is allowed, and a least number of tokens",
        COMPLETIONS,
        completion(allowed_token_ids=[0, 1, 2], stop_token_ids=[0, 1, 2], min_tokens=1),
        frozenset({400}),
        ("min_tokens", "allowed_token_ids"),
    ),
    (
        "everything allowed is a bad word",
        COMPLETIONS,
        completion(allowed_token_ids=[70], logit_bias={"70": -100}, max_tokens=2),
        EITHER,
        ("allowed_token_ids", "logit_bias"),
    ),
    (
        "all of the template's variables",
        CHATS,
        chat(chat_template_kwargs={"messages": []}),
        frozenset({400}),
        ("messages",),
    ),
    ("a template of its own", CHATS, chat(chat_template="{{ 7 * 7 }}"), frozenset({400}), ("chat_template",)),
    ("a role that is a special token", CHATS, chat(messages=[{"role": "<|im_end|>", "content": "a"}]), EITHER, ()),
    ("template code in a message", CHATS, chat(messages=[{"role": "user", "content": "{% raw %}{{ 1 }}"}]), FINE, ()),
    ("the key in a prompt", COMPLETIONS, completion(prompt=KEY), FINE, ()),
]

STRINGS = ["prompt", "user", "stop", "cache_salt", "model", "request_id", "bad_words", "service_tier"]
UNICODE = "\u202e\u0000\ufeff\ufffd\U0010ffff𝕳é\u0301ß\u2028"


def rows() -> list[Row]:
    """All of this theme."""
    return [*_deep(), *_numbers(), *_strings(), *(_odd(*row) for row in ODD)]


def _odd(name: str, path: str, body: bytes, allowed: frozenset[int], names: tuple[str, ...]) -> Row:
    return Row(name, path, body, allowed=allowed, names=names)


def _deep() -> list[Row]:
    return [
        Row(
            f"{kind}s nested {depth} deep in {place}",
            path,
            with_raw(field, around % nested(depth, kind), of=request),
            allowed=EITHER,
            names=(field, "nested", "deep"),
        )
        for place, path, field, around, request in PLACES
        for depth in DEPTHS
        for kind in ("list", "object")
    ]


def _numbers() -> list[Row]:
    floats = [
        ("temperature", NUMBERS),
        ("top_p", NUMBERS),
        ("repetition_penalty", NUMBERS),
        ("timeout", ["NaN", "Infinity", "1e400", "0", "-1", "1e308"]),
    ]
    integers = [(name, INTEGERS) for name in ("max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "logprobs")]
    integers.append(("truncate_prompt_tokens", INTEGERS))
    return [
        Row(
            f"{field} is {value if len(value) < 30 else f'a number of {len(value)} digits'}",
            COMPLETIONS,
            with_raw(field, value),
            allowed=EITHER,
            names=(field, "JSON"),
        )
        for field, values in [*floats, *integers]
        for value in values
    ]


def _strings() -> list[Row]:
    found = []
    for field in STRINGS:
        kinds = [("a lone surrogate", SURROGATE), ("letters from all over Unicode", json.dumps(UNICODE))]
        for what, value in kinds:
            shown = f"[{value}]" if field == "bad_words" else value
            allowed = EITHER | {404} if field == "model" else EITHER
            body = with_raw(field, shown)
            found.append(Row(f"{what} in {field}", COMPLETIONS, body, allowed=allowed, names=(field, "JSON")))
        number = with_raw(field, "5")
        found.append(Row(f"a number as {field}", COMPLETIONS, number, allowed=ANY, names=(field,)))
    surrogate = with_raw("messages", f'[{{"role": "user", "content": {SURROGATE}}}]', of=CHAT)
    found.append(
        Row("a lone surrogate in a message", CHATS, surrogate, allowed=EITHER, names=("messages", "JSON", "prompt"))
    )
    return found
