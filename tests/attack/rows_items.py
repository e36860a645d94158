"""The Responses and the Messages API: items, blocks, tools and kept answers that are not what they should be."""

from collections.abc import Callable
from typing import Any

from tests.attack.make import given, nested, with_raw
from tests.attack.row import Row
from tests.attack.rows_texts import ANY, MB, REFUSED, text

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
BAD = frozenset({400})
EITHER = frozenset({200, 400})
UNKNOWN = frozenset({404})
MANY = 50_000
TOO_LONG = {900: ("rompt has", "rompt is"), 100_000: ()}
"""For each depth of nested objects what else an error may name: a template that shows 900 of them fills the context."""
DEPTHS = tuple(TOO_LONG)
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"name": "f", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}

NESTED_CALL = '[{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": %s}]}]'
CUSTOM = {"type": "custom"}
BLOCK = {"type": "text", "text": "a"}
LOGPROBS = "message.output_text.logprobs"
SOUND: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "Hi", "max_output_tokens": 2},
    MESSAGES: {"messages": [USER], "max_tokens": 2},
    COUNT: {"messages": [USER]},
}
"""A request of each route."""

Fields = Callable[[], dict[str, Any]]
Odd = tuple[str, dict[str, Any], frozenset[int], tuple[str, ...]]

# (what is odd, fields that differ from a sound request, statuses, what the error names)
OF_RESPONSES: list[Odd] = [
    ("no input", {"input": None}, BAD, ("input",)),
    ("no items", {"input": []}, BAD, ("input",)),
    ("a number as input", {"input": 5}, BAD, ("input",)),
    ("an item that is a text", {"input": ["Hi"]}, BAD, ("input",)),
    ("an empty item", {"input": [{}]}, BAD, ("input",)),
    ("an item of a kind that is none", {"input": [{"type": "thought"}]}, BAD, ("input",)),
    ("an item whose kind is a list", {"input": [{"type": []}]}, BAD, ("input",)),
    (
        "a reference to an item that is not kept",
        {"input": [{"type": "item_reference", "id": "x"}]},
        UNKNOWN,
        ("input",),
    ),
    ("a reference without an id", {"input": [{"type": "item_reference"}]}, UNKNOWN, ("input",)),
    ("a reference whose id is a list", {"input": [{"type": "item_reference", "id": ["x"]}]}, BAD | UNKNOWN, ("input",)),
    ("a role that is none", {"input": [{"role": "model", "content": "Hi"}]}, BAD, ("input",)),
    ("a role that is a list", {"input": [{"role": ["user"], "content": "Hi"}]}, BAD, ("input",)),
    ("a message without content", {"input": [{"role": "user"}]}, BAD, ("input",)),
    ("a message of numbers", {"input": [{"role": "user", "content": [5]}]}, BAD, ("input",)),
    ("a picture", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, BAD, ("input",)),
    ("a part without its text", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, BAD, ("input",)),
    ("a message whose id is a list", {"input": [{**USER, "id": ["x"]}]}, EITHER, ("input",)),
    ("a message whose id is an object", {"input": [{**USER, "id": {}}, {**USER, "id": {"a": 1}}]}, EITHER, ("input",)),
    ("a message whose state is a list", {"input": [{**USER, "status": []}]}, EITHER, ("input",)),
    ("a call without a name", {"input": [{**CALL, "name": None}]}, BAD, ("input",)),
    ("a call with arguments that are an object", {"input": [{**CALL, "arguments": {}}]}, BAD, ("input",)),
    ("a call with arguments that are no JSON", {"input": [USER, {**CALL, "arguments": "{"}]}, EITHER, ("input",)),
    ("the result of no call", {"input": [{"type": "function_call_output", "call_id": "x", "output": "a"}]}, EITHER, ()),
    ("a result that is a number", {"input": [{"type": "function_call_output", "call_id": "x", "output": 5}]}, BAD, ()),
    ("reasoning that nobody sealed", {"input": [{"type": "reasoning", "encrypted_content": "x"}, USER]}, EITHER, ()),
    ("an earlier response that is not kept", {"previous_response_id": "resp_x"}, UNKNOWN, ("previous_response_id",)),
    ("an earlier response without a name", {"previous_response_id": ""}, UNKNOWN, ("previous_response_id",)),
    ("an earlier response that is a number", {"previous_response_id": 5}, BAD, ("previous_response_id",)),
    ("a conversation that is kept", {"conversation": "conv_x"}, BAD, ("conversation",)),
    ("an answer that is kept apart and not kept", {"background": True, "store": False}, BAD, ("store",)),
    ("a search of the web", {"tools": [{"type": "web_search"}]}, BAD, ("tools",)),
    ("a tool without a kind", {"tools": [{}]}, BAD, ("tools",)),
    ("a tool whose kind is an object", {"tools": [{"type": {}}]}, BAD, ("tools",)),
    ("a tool without a name", {"tools": [{"type": "function"}]}, BAD, ("tools",)),
    ("two tools of a name", {"tools": [{"type": "function", "name": "f"}] * 2}, BAD, ("tools",)),
    ("a namespace of texts", {"tools": [{"type": "namespace", "name": "n", "tools": ["f"]}]}, BAD, ("tools",)),
    ("a tool whose form is a text", {"tools": [{"type": "custom", "name": "f", "format": "text"}]}, BAD, ("tools",)),
    ("a choice of a tool that is not there", {"tool_choice": {"type": "function", "name": "f"}}, BAD, ("tool_choice",)),
    ("a choice of a kind that is none", {"tool_choice": {"type": 5}}, BAD, ("tool_choice",)),
    ("a part of answers that is none", {"include": ["everything"]}, BAD, ("include",)),
    ("a form that is none", {"text": {"format": {"type": "poem"}}}, BAD, ("text.format",)),
    ("a schema without its schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}, BAD, ("text.format",)),
    ("no tokens of output", {"max_output_tokens": 0}, BAD, ("max_output_tokens",)),
    ("-1 tokens of output", {"max_output_tokens": -1}, BAD, ("max_output_tokens",)),
    ("-1 scores", {"top_logprobs": -1, "include": [LOGPROBS]}, BAD, ("top_logprobs",)),
    ("10^9 scores", {"top_logprobs": 10**9, "include": [LOGPROBS]}, BAD, ("top_logprobs",)),
    ("17 entries of metadata", {"metadata": {str(number): "a" for number in range(17)}}, BAD, ("metadata",)),
    ("metadata that are numbers", {"metadata": {"a": 5}}, BAD, ("metadata",)),
    ("a truncation that is none", {"truncation": "middle"}, BAD, ("truncation",)),
    ("a field that nobody knows", {"unheard_of": 5}, EITHER, ("unheard_of",)),
]

OF_MESSAGES: list[Odd] = [
    ("no most tokens", {"max_tokens": None}, BAD, ("max_tokens",)),
    ("no tokens", {"max_tokens": 0}, BAD, ("max_tokens",)),
    ("-1 tokens", {"max_tokens": -1}, BAD, ("max_tokens",)),
    ("a text for most tokens", {"max_tokens": "5"}, BAD, ("max_tokens",)),
    ("no messages", {"messages": []}, BAD, ("messages",)),
    ("a text as messages", {"messages": "Hi"}, BAD, ("messages",)),
    ("a role that is none", {"messages": [{"role": "model", "content": "Hi"}]}, BAD, ("messages",)),
    ("a message without content", {"messages": [{"role": "user"}]}, BAD, ("content",)),
    ("an empty block", {"messages": [{"role": "user", "content": [{}]}]}, BAD, ("messages",)),
    ("a block whose kind is a list", {"messages": [{"role": "user", "content": [{"type": []}]}]}, BAD, ("messages",)),
    ("a picture", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, BAD, ("messages",)),
    ("a text that is a number", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, BAD, ()),
    ("an empty text", {"messages": [{"role": "user", "content": ""}]}, EITHER, ("messages",)),
    ("a call without input", {"messages": [{"role": "assistant", "content": [{**USE, "input": None}]}]}, BAD, ()),
    ("a call by a user", {"messages": [{"role": "user", "content": [USE]}]}, BAD, ("messages",)),
    (
        "the result of no call",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
        BAD,
        ("messages",),
    ),
    (
        "thoughts that nobody signed",
        {"messages": [USER, {"role": "assistant", "content": [{"type": "thinking"}]}]},
        BAD,
        (),
    ),
    ("instructions that are a number", {"system": 5}, BAD, ("system",)),
    ("instructions of pictures", {"system": [{"type": "image"}]}, BAD, ("system",)),
    ("a tool that searches the web", {"tools": [{"type": "web_search_20250305", "name": "w"}]}, BAD, ("tools",)),
    ("a tool without a name", {"tools": [{"input_schema": SCHEMA}]}, BAD, ("tools",)),
    ("a tool without a schema", {"tools": [{"name": "f"}]}, BAD, ("tools",)),
    ("a tool whose schema is a list", {"tools": [{"name": "f", "input_schema": []}]}, BAD, ("tools",)),
    ("a choice that is none", {"tools": [TOOL], "tool_choice": {"type": "some"}}, BAD, ("tool_choice",)),
    ("a choice of no tool", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, BAD, ("tool_choice",)),
    ("a choice without tools", {"tool_choice": {"type": "any"}}, BAD, ("tool_choice",)),
    ("thinking that is none", {"thinking": {"type": "hard"}}, BAD, ("thinking",)),
    ("thinking without a budget", {"thinking": {"type": "enabled"}}, BAD, ("thinking",)),
    ("thinking of -1 tokens", {"thinking": {"type": "enabled", "budget_tokens": -1}}, BAD, ("thinking",)),
    ("a form that is none", {"output_config": {"format": {"type": "poem"}}}, BAD, ("output",)),
    ("a change that is none", {"context_management": {"edits": [{"type": "forget"}]}}, BAD, ("context_management",)),
    ("servers of tools", {"mcp_servers": [{"url": "http://127.0.0.1"}]}, BAD, ("mcp_servers",)),
    ("a user that is a number", {"metadata": {"user_id": 5}}, BAD, ("metadata", "user_id")),
    ("a temperature that is no number", {"temperature": "hot"}, BAD, ("temperature",)),
    ("a field that nobody knows", {"unheard_of": 5}, EITHER, ("unheard_of",)),
]

LARGE: list[tuple[str, str, Fields, frozenset[int], tuple[str, ...]]] = [
    ("50,000 items", RESPONSES, lambda: {"input": [USER] * MANY}, REFUSED, ("input",)),
    ("a text of 2 MB", RESPONSES, lambda: {"input": text(2 * MB)}, REFUSED, ("input",)),
    ("2 MB that may be cut", RESPONSES, lambda: {"input": text(2 * MB), "truncation": "auto"}, REFUSED, ("input",)),
    ("2,000 items that may be cut", RESPONSES, lambda: {"input": [USER] * 2000, "truncation": "auto"}, ANY, ()),
    (
        "50,000 tools",
        RESPONSES,
        lambda: {"tools": [{**CUSTOM, "name": f"f{each}"} for each in range(MANY)]},
        REFUSED,
        (),
    ),
    ("50,000 parts of answers", RESPONSES, lambda: {"include": [LOGPROBS] * MANY}, ANY, ("include",)),
    ("instructions of 2 MB", RESPONSES, lambda: {"instructions": text(2 * MB)}, REFUSED, ()),
    (
        "an earlier name of 1 MB",
        RESPONSES,
        lambda: {"previous_response_id": text(MB)},
        UNKNOWN,
        ("previous_response_id",),
    ),
    ("metadata of 1 MB", RESPONSES, lambda: {"metadata": {"a": text(MB)}}, REFUSED, ("metadata",)),
    ("50,000 messages", MESSAGES, lambda: {"messages": [USER] * MANY}, REFUSED, ()),
    ("50,000 counted messages", COUNT, lambda: {"messages": [USER] * MANY}, ANY, ()),
    ("a message of 2 MB", MESSAGES, lambda: {"messages": [{"role": "user", "content": text(2 * MB)}]}, REFUSED, ()),
    ("a counted message of 2 MB", COUNT, lambda: {"messages": [{"role": "user", "content": text(2 * MB)}]}, ANY, ()),
    ("50,000 blocks", MESSAGES, lambda: {"messages": [{"role": "user", "content": [BLOCK] * MANY}]}, REFUSED, ()),
    ("50,000 tools", MESSAGES, lambda: {"tools": [{**TOOL, "name": f"f{each}"} for each in range(MANY)]}, REFUSED, ()),
    ("instructions of 2 MB", MESSAGES, lambda: {"system": text(2 * MB)}, REFUSED, ()),
    ("200,000 stop strings", MESSAGES, lambda: {"stop_sequences": ["a"] * 200_000}, REFUSED, ("stop_sequences",)),
    ("50,000 unknown fields", MESSAGES, lambda: {f"field{each}": 1 for each in range(MANY)}, ANY, ()),
]

# (what is odd, method, target): answers that are kept, and are not there
KEPT = [
    ("an answer that is not kept", "GET", "/v1/responses/resp_x"),
    ("an answer whose name has 5,000 letters", "GET", "/v1/responses/" + "x" * 5000),
    ("an answer whose name is a NUL", "GET", "/v1/responses/%00"),
    ("a stream that is not kept", "GET", "/v1/responses/resp_x?stream=true&starting_after=-5"),
    ("items that are not kept", "GET", "/v1/responses/resp_x/input_items?limit=-1&order=sideways"),
    ("the end of what is not kept", "POST", "/v1/responses/resp_x/cancel"),
    ("the deletion of what is not kept", "DELETE", "/v1/responses/resp_x"),
    ("a completion that is not kept", "GET", "/v1/completions/cmpl-x"),
    ("a chat that is not kept", "GET", "/v1/chat/completions/chatcmpl-x"),
]


# (where the nesting is, path, the field, the text around it)
PLACES: list[tuple[str, str, str, str]] = [
    ("an item", RESPONSES, "input", '[{"role": "user", "content": "Hi", "x": %s}]'),
    ("a tool's parameters", RESPONSES, "tools", '[{"type": "function", "name": "f", "parameters": %s}]'),
    ("a form", RESPONSES, "text", '{"format": {"type": "json_schema", "name": "a", "schema": %s}}'),
    ("what a client says of itself", RESPONSES, "client_metadata", "%s"),
    ("a call's input", MESSAGES, "messages", NESTED_CALL),
    ("a tool's schema", MESSAGES, "tools", '[{"name": "f", "input_schema": %s}]'),
    ("a field that nobody knows", MESSAGES, "unheard_of", "%s"),
]


def rows() -> list[Row]:
    """All of this theme."""
    found = [_row(RESPONSES, *odd) for odd in OF_RESPONSES]
    found += [_row(MESSAGES, *odd) for odd in OF_MESSAGES]
    found += [_large(*row) for row in LARGE]
    found += [Row(name, target, method=method, allowed=UNKNOWN) for name, method, target in KEPT]
    return [*found, *_deep()]


def _row(path: str, name: str, fields: dict[str, Any], allowed: frozenset[int], names: tuple[str, ...]) -> Row:
    body = given({**SOUND[path], **fields})
    return Row(f"{path}: {name}", path, body, allowed=allowed, names=names)


def _large(name: str, path: str, fields: Fields, allowed: frozenset[int], names: tuple[str, ...]) -> Row:
    return Row(
        f"{path}: {name}", path, lambda: given({**SOUND[path], **fields()}), allowed=allowed, names=names, large=True
    )


def _deep() -> list[Row]:
    return [
        Row(
            f"{path}: objects nested {depth} deep in {place}",
            path,
            with_raw(field, around % nested(depth, "object"), of=SOUND[path]),
            allowed=EITHER,
            names=(field, "nested", "deep", *TOO_LONG[depth]),
        )
        for place, path, field, around in PLACES
        for depth in DEPTHS
    ]
