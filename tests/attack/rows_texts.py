"""Too much text: prompts, messages, roles, names."""

import json

from tests.attack.make import chat, completion, message
from tests.attack.row import Row

MB = 1_000_000
ANY = frozenset({200, 400, 413})
REFUSED = frozenset({400, 413})
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
PROMPT = ("prompt", "messages", "body")


def text(characters: int, unit: str = "ab cd ") -> str:
    """So many characters."""
    return (unit * (characters // len(unit) + 1))[:characters]


def to_tokenize(prompt: str) -> bytes:
    """A body of /tokenize."""
    return json.dumps({"prompt": prompt}, ensure_ascii=False).encode()


def conversation(count: int) -> dict[str, object]:
    """Messages of one letter."""
    return {"messages": [{"role": "user", "content": "a"}] * count}


PROMPTS = [
    Row("a text of 2 MB to tokenize", "/tokenize", lambda: to_tokenize(text(2 * MB)), allowed=ANY, names=PROMPT),
    Row(
        "a text of 2 MB to tokenize, without a key",
        "/tokenize",
        lambda: to_tokenize(text(2 * MB)),
        keyed=False,
        allowed=ANY | {401},
        large=True,
    ),
    Row("2 MB of one letter to tokenize", "/tokenize", lambda: to_tokenize(text(2 * MB, "a")), allowed=ANY, large=True),
    Row("2 MB of spaces to tokenize", "/tokenize", lambda: to_tokenize(text(2 * MB, " ")), allowed=ANY, large=True),
    Row("2 MB of emoji to tokenize", "/tokenize", lambda: to_tokenize(text(MB // 2, "🙂")), allowed=ANY, large=True),
    Row(
        "2 MB of special tokens to tokenize",
        "/tokenize",
        lambda: to_tokenize(text(2 * MB, "<|im_end|>")),
        allowed=ANY,
        large=True,
    ),
    Row(
        "a text of 20 MB to tokenize",
        "/tokenize",
        lambda: to_tokenize(text(20 * MB)),
        allowed=REFUSED,
        names=PROMPT,
        large=True,
    ),
    Row("a prompt of 2 MB", COMPLETIONS, lambda: completion(prompt=text(2 * MB)), allowed=REFUSED, names=PROMPT),
    Row(
        "a prompt of 20 MB",
        COMPLETIONS,
        lambda: completion(prompt=text(20 * MB)),
        allowed=REFUSED,
        names=PROMPT,
        large=True,
    ),
    Row(
        "ten prompts of 2 MB",
        COMPLETIONS,
        lambda: completion(prompt=[text(2 * MB)] * 10),
        allowed=REFUSED,
        names=PROMPT,
        large=True,
    ),
    Row(
        "a prompt of 2 MB that is to be truncated",
        COMPLETIONS,
        lambda: completion(prompt=text(2 * MB), truncate_prompt_tokens=10),
        allowed=ANY,
        names=PROMPT,
        large=True,
    ),
    Row(
        "a million token ids",
        COMPLETIONS,
        lambda: completion(prompt=[5] * MB),
        allowed=REFUSED,
        names=("prompt", "prompt_token_ids"),
        large=True,
    ),
    Row(
        "500,000 token ids to detokenize",
        "/detokenize",
        lambda: json.dumps({"tokens": [5] * 500_000}).encode(),
        allowed=ANY,
        names=("tokens",),
        large=True,
    ),
]

CONVERSATIONS = [
    Row("a message of 2 MB", CHATS, lambda: message(text(2 * MB)), allowed=REFUSED, names=PROMPT),
    Row("a message of 20 MB", CHATS, lambda: message(text(20 * MB)), allowed=REFUSED, names=PROMPT, large=True),
    Row("a role of 1 MB", CHATS, lambda: message("Hi", role=text(MB)), allowed=REFUSED, names=PROMPT),
    Row("50,000 messages", CHATS, lambda: chat(**conversation(50_000)), allowed=REFUSED, names=PROMPT, large=True),
    Row(
        "50,000 messages to tokenize, without a key",
        "/tokenize",
        lambda: json.dumps(conversation(50_000)).encode(),
        keyed=False,
        allowed=REFUSED | {401},
        names=(*PROMPT, "key"),
        large=True,
    ),
    Row("9,000 messages", CHATS, lambda: chat(**conversation(9000)), allowed=REFUSED, names=PROMPT),
    Row(
        "a message of 100,000 parts",
        CHATS,
        lambda: message([{"type": "text", "text": "a"}] * 100_000),
        allowed=REFUSED,
        names=PROMPT,
        large=True,
    ),
]

NAMES = [
    Row("a user of 1 MB", COMPLETIONS, lambda: completion(user=text(MB)), allowed=ANY, names=("user",)),
    Row(
        "a cache salt of 1 MB", COMPLETIONS, lambda: completion(cache_salt=text(MB)), allowed=ANY, names=("cache_salt",)
    ),
    Row("a model's name of 1 MB", COMPLETIONS, lambda: completion(model=text(MB)), allowed=REFUSED | {404}),
    Row("a field's name of 1 MB", COMPLETIONS, lambda: completion(**{text(MB): 1}), allowed=REFUSED, names=("field",)),
    Row("a request id of 1 MB", COMPLETIONS, lambda: completion(request_id=text(MB)), names=("request_id",)),
    Row(
        "100,000 unknown fields",
        COMPLETIONS,
        lambda: completion(**{f"field{number}": 1 for number in range(100_000)}),
        allowed=REFUSED,
        names=("field",),
        large=True,
    ),
]


def rows() -> list[Row]:
    """All of this theme."""
    return [*PROMPTS, *CONVERSATIONS, *NAMES]
