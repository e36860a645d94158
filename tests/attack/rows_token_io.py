"""Bodies whose path says nothing of their kind (/invocations), token ids, items to score, and several chats at once."""

import json
from typing import Any

from tests.attack.make import COMPLETION, given, nested, with_raw
from tests.attack.row import Row
from tests.attack.rows_texts import ANY, MB, REFUSED, text

INVOCATIONS, GENERATE, ABORT = "/invocations", "/inference/v1/generate", "/abort_requests"
SCORING, CHATS = "/generative_scoring", "/v1/chat/completions/batch"
READ_CHAT, READ_COMPLETION = "/v1/chat/completions/derender", "/v1/completions/derender"
KINDS = ("messages", "prompt", "query and documents", "body")
FINE = frozenset({200})
EITHER = frozenset({200, 400})
IDS: dict[str, Any] = {"token_ids": [72, 105], "sampling_params": {"max_tokens": 2, "temperature": 0}}
SCORED: dict[str, Any] = {"query": "a", "items": ["b", "c"], "label_token_ids": [72, 105]}
HI = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

# (what is odd, body, statuses, what the error names)
INVOKED: list[tuple[str, bytes, frozenset[int], tuple[str, ...]]] = [
    ("nothing", b"", REFUSED, ()),
    ("null", b"null", REFUSED, ()),
    ("a list", b"[1]", REFUSED, ()),
    ("half an object", b'{"prompt": "a"', REFUSED, ()),
    ("no UTF-8", b'{"prompt": "\xff\xfe"}', REFUSED, ()),
    ("no kind", b'{"a": 1}', REFUSED, KINDS),
    ("half a kind", b'{"query": "a"}', REFUSED, KINDS),
    ("a kind in its values alone", b'{"a": {"prompt": "Hi"}}', REFUSED, KINDS),
    ("a kind that is null", b'{"prompt": null}', REFUSED, ("prompt",)),
    ("two kinds", given({**CHAT, "prompt": "Hi"}), EITHER, ("prompt", "messages")),
    ("one kind twice", b'{"prompt": "a", "prompt": 5, "max_tokens": 1}', EITHER, ("prompt",)),
    ("a field of another kind", given({**COMPLETION, "documents": ["a"]}), EITHER, ("documents",)),
    ("vectors that the model does not give", given({"input": "Hi"}), REFUSED, ()),
    ("ranks that the model does not give", given({"query": "a", "documents": ["b"]}), REFUSED, ()),
    ("deep values", with_raw("a", nested(100_000), of=COMPLETION), REFUSED, ()),
    ("deep objects", with_raw("messages", nested(100_000, "object"), of={}), REFUSED, ()),
    ("a field of 1 MB", json.dumps({text(MB): 1}).encode(), REFUSED, ()),
    ("a prompt of 1 MB", given({"prompt": text(MB)}), REFUSED, ("prompt", "body")),
    ("100,000 fields", given({f"a{number}": 1 for number in range(100_000)}), REFUSED, ()),
]
# (what is odd, path, fields that differ from a sound request, statuses, what the error names)
TOKENS: list[tuple[str, str, dict[str, Any], frozenset[int], tuple[str, ...]]] = [
    ("no ids", GENERATE, {"token_ids": []}, REFUSED, ("token_ids",)),
    ("ids of text", GENERATE, {"token_ids": ["a"]}, REFUSED, ("token_ids",)),
    ("a negative id", GENERATE, {"token_ids": [-1]}, REFUSED, ("token_ids",)),
    ("an id beyond the vocabulary", GENERATE, {"token_ids": [2**31 - 1]}, REFUSED, ("token_ids", "vocabulary")),
    ("an id of 5,000 digits", GENERATE, {"token_ids": [10**4000]}, REFUSED, ("token_ids",)),
    ("a truth value as an id", GENERATE, {"token_ids": [True]}, REFUSED, ("token_ids",)),
    ("more ids than the context", GENERATE, {"token_ids": [72] * 300_000}, REFUSED, ("token_ids", "context", "prompt")),
    ("sampling parameters that are a list", GENERATE, {"sampling_params": [1]}, REFUSED, ("sampling_params",)),
    ("a parameter that is none", GENERATE, {"sampling_params": {"tempo": 1}}, REFUSED, ("tempo",)),
    ("2,147,483,647 choices", GENERATE, {"sampling_params": {"n": 2**31 - 1}}, REFUSED, ("n",)),
    ("a temperature of text", GENERATE, {"sampling_params": {"temperature": "hot"}}, REFUSED, ("temperature",)),
    ("an output mode that is none", GENERATE, {"output_mode": "sound"}, REFUSED, ("output_mode",)),
    ("a request id of 1 MB", GENERATE, {"request_id": text(MB)}, REFUSED, ("request_id",)),
    ("100,000 ids to abort", ABORT, {"request_ids": ["a"] * 100_000}, frozenset({413}), ("body",)),
    ("50,000 ids to abort", ABORT, {"request_ids": ["a"] * 50_000}, FINE, ()),
    ("a number to abort", ABORT, {"request_ids": 5}, REFUSED, ("request_ids",)),
    ("a chat to read without an answer", READ_CHAT, {"chat_request": CHAT}, REFUSED, ("generate_response",)),
    ("an answer of ids beyond the vocabulary", READ_CHAT,
     {"chat_request": CHAT, "generate_response": {"choices": [{"index": 0, "token_ids": [2**31 - 1]}]}}, REFUSED,
     ("token_ids", "vocabulary", "generate_response")),
    ("an answer of another index", READ_CHAT,
     {"chat_request": CHAT, "generate_response": {"choices": [{"index": 2**31 - 1, "token_ids": [72]}]}}, REFUSED, ()),
    ("300,000 answers of one chat", READ_CHAT,
     {"chat_request": CHAT, "generate_response": {"choices": [{"index": 0, "token_ids": []}] * 300_000}}, ANY, ()),
    ("more answers than prompts", READ_COMPLETION,
     {"completion_request": COMPLETION, "generate_responses": [{"choices": []}] * 1000}, REFUSED, ()),
    ("no labels", SCORING, {"label_token_ids": []}, REFUSED, ("label_token_ids",)),
    ("100,000 labels", SCORING, {"label_token_ids": [72] * 100_000}, REFUSED, ("label_token_ids",)),
    ("a label twice", SCORING, {"label_token_ids": [72, 72]}, REFUSED, ("label_token_ids",)),
    ("a label beyond the vocabulary", SCORING, {"label_token_ids": [2**31 - 1]}, REFUSED, ("label_token_ids",)),
    ("a negative label", SCORING, {"label_token_ids": [-1]}, REFUSED, ("label_token_ids",)),
    ("no items", SCORING, {"items": []}, REFUSED, ("items",)),
    ("an empty item", SCORING, {"items": [""]}, REFUSED, ("items",)),
    ("an item that is an object", SCORING, {"items": [{"text": "a"}]}, REFUSED, ("items",)),
    ("an item beyond the vocabulary", SCORING, {"items": [[2**31 - 1]]}, REFUSED, ("items", "vocabulary")),
    ("200,000 items", SCORING, {"items": ["a"] * 200_000}, REFUSED, ("items",)),
    ("an item of 1 MB", SCORING, {"items": [text(MB)]}, REFUSED, ("items", "prompt", "body")),
    ("a query of 1 MB", SCORING, {"query": text(MB)}, REFUSED, ("items", "query", "prompt", "body")),
    ("a query that is a number", SCORING, {"query": 5}, REFUSED, ("query",)),
    ("no conversations", CHATS, {"messages": []}, REFUSED, ("messages",)),
    ("a conversation that is a message", CHATS, {"messages": HI}, REFUSED, ("messages",)),
    ("a conversation without messages", CHATS, {"messages": [HI, []]}, REFUSED, ("messages",)),
    ("a message that is a number", CHATS, {"messages": [HI, [5]]}, REFUSED, ("messages",)),
    ("200,000 conversations", CHATS, {"messages": [HI] * 200_000}, REFUSED, ("messages",)),
    ("a conversation of 1 MB", CHATS, {"messages": [HI, [{"role": "user", "content": text(MB)}]]}, REFUSED, ("messages",)),
    ("1 MB for each of 60 conversations", CHATS, {"messages": [HI] * 60, "metadata": {"a": text(MB)}}, ANY, ()),
    ("conversations to stream", CHATS, {"messages": [HI], "stream": True}, REFUSED, ("stream",)),
    ("conversations with tools", CHATS, {"messages": [HI], "tools": [{"a": 1}]}, REFUSED, ("tools",)),
    ("2,147,483,647 choices of conversations", CHATS, {"messages": [HI], "n": 2**31 - 1}, REFUSED, ("n",)),
]  # fmt: skip


def rows() -> list[Row]:
    """All of them."""
    found = []
    for name, body, allowed, names in INVOKED:
        found.append(Row(f"{name} to /invocations", INVOCATIONS, body, allowed=allowed, names=names, seconds=5))
    for name, path, fields, allowed, names in TOKENS:
        sound = {GENERATE: IDS, SCORING: SCORED}.get(path, {})
        found.append(Row(f"{name} to {path}", path, given(sound | fields), allowed=allowed, names=names, seconds=5))
    return found
