"""Items of an input and tools reach the chat request as the same conversation, or are refused by name."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from core.api.errors import RequestError
from core_apis.responses.conversation import messages_of
from core_apis.responses.items import complete, given_items
from core_apis.responses.reasoning import sealed
from core_apis.responses.tools import chat_tools

ITEM = TypeAdapter[Any](ResponseItem)
USER = {"role": "user", "content": "Hi"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"path": "."}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "There.", "annotations": []}],
}
LS_CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
PATCH_CALL = {"id": "c2", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin Patch"}}


def test_an_answer_is_one_message() -> None:
    items = [USER, REASONING, ANSWER, CALL, CUSTOM, OUTPUT, CUSTOM_OUTPUT, REASONING, ANSWER]
    assert messages_of(None, items) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "reasoning": "Hm.", "content": "There.", "tool_calls": [LS_CALL, PATCH_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": "ok"},
        {"role": "assistant", "reasoning": "Hm.", "content": "There."},
    ]


def test_pictures_of_outputs_are_shown_in_the_turn_of_the_user_behind_them() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    output = {**OUTPUT, "output": [{"type": "input_text", "text": "a"}, image]}
    custom = {**CUSTOM_OUTPUT, "output": [image]}
    found = messages_of(None, [USER, CALL, CUSTOM, output, custom, USER, ANSWER])
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert [message["content"] for message in found[2:4]] == ["a", ""]
    shown = found[4]["content"]
    assert [part["type"] for part in shown] == ["image_url", "image_url", "text"]
    assert shown[0].place == "input[3].output[1]"
    [last] = messages_of(None, [CALL, output])[2:]
    assert last["role"] == "user"
    with pytest.raises(RequestError, match="is of type None"):
        messages_of(None, [CALL, {**OUTPUT, "output": [image, "x"]}])


def test_two_answers_in_a_row_stay_two() -> None:
    roles = [(m["role"], "tool_calls" in m) for m in messages_of(None, [USER, ANSWER, ANSWER, CALL, ANSWER])]
    assert roles == [("user", False), ("assistant", False), ("assistant", True), ("assistant", False)]


def test_all_that_instructs_at_the_beginning_is_one_message() -> None:
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "B"}]}
    late = {"role": "system", "content": "D"}
    messages = messages_of("A", [developer, {"role": "developer", "content": "C"}, USER, late])
    assert messages == [{"role": "system", "content": "A\n\nB\n\nC"}, USER, late]
    assert messages_of(None, [developer, USER])[0] == {"role": "developer", "content": "B"}


def test_several_parts_of_a_user_stay_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    (message,) = messages_of(None, [{"role": "user", "content": parts}])
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"encrypted_content": sealed("Hm 🙂."), "summary": []}, "Hm 🙂."),
        ({"encrypted_content": sealed("best"), "summary": [{"type": "summary_text", "text": "short"}]}, "best"),
        ({"encrypted_content": "gAAA", "summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ({"encrypted_content": None, "summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ({"content": [{"type": "reasoning_text", "text": "x"}], "summary": []}, "x"),
    ],
)
def test_reasoning_comes_back_from_the_best_that_there_is(item: dict[str, Any], text: str) -> None:
    (message,) = messages_of(None, [{"type": "reasoning", **item}])
    assert message == {"role": "assistant", "reasoning": text}


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"type": "web_search_call", "id": "ws_1"}, "input[1] is of type 'web_search_call'"),
        ({"type": "functoin_call"}, "Did you mean 'function_call'?"),
        ({"type": "reasoning", "encrypted_content": "gAAA", "summary": []}, "encrypted_content was not made by"),
        ({"role": "critic", "content": "x"}, "role is 'critic'"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": "data:"}]}, "of type 'input_file'"),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "content[0].file_id: files are not kept",
        ),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": "data:"}]}, "of type 'input_image'"),
        ({"role": "user", "content": [{"type": "input_text", "text": 5}]}, "content[0].text is int"),
        ({"role": "user"}, "content is no text and no list"),
        ({"type": "function_call", "name": "ls", "arguments": {}}, "arguments is dict"),
        ({"type": "function_call_output", "output": "x"}, "call_id is NoneType"),
        ({}, "is of type None"),
        ({"type": ["message"]}, "is of type ['message']"),
    ],
)
def test_items_that_no_model_reads(item: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as error:
        messages_of(None, [USER, item])
    assert told in str(error.value) and error.value.param == "input"


def test_kept_items_are_what_openai_calls_items() -> None:
    kept = complete(given_items([USER, REASONING, ANSWER, CALL, OUTPUT, CUSTOM, CUSTOM_OUTPUT], {}))
    kept += complete(given_items("text", {}))
    kept += complete(given_items([{"role": "assistant", "content": "plain"}], {}))
    made = [json.loads(item.data) for item in kept]
    assert [item["id"] for item in made] == [item.id for item in kept]
    for item in made:
        ITEM.validate_python(item)
    ids = [item["id"] for item in made]
    assert len(set(ids)) == len(ids) and ids[1:3] == ["rs_1", "msg_1"]


def test_a_reference_stands_for_a_kept_item() -> None:
    assert given_items([{"type": "item_reference", "id": "msg_1"}], {"msg_1": ANSWER}) == [ANSWER]
    with pytest.raises(RequestError, match="refers to the item 'msg_2', which this server does not keep"):
        given_items([{"type": "item_reference", "id": "msg_2"}], {"msg_1": ANSWER})


FUNCTION = {"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": False, "description": "d"}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
}
SPACE = {"type": "namespace", "name": "agents", "description": "d", "tools": [{**FUNCTION, "name": "close"}]}


def test_tools_as_chat_requests_have_them() -> None:
    made = chat_tools([FUNCTION, PATCH, SPACE], "auto")
    function = {"name": "ls", "description": "d", "parameters": {"type": "object"}, "strict": False}
    grammar = {"syntax": "lark", "definition": "start: /x+/"}
    custom = {"name": "apply_patch", "format": {"type": "grammar", "grammar": grammar}}
    assert made.tools == [
        {"type": "function", "function": function},
        {"type": "custom", "custom": custom},
        {"type": "function", "function": {**function, "name": "agents__close"}},
    ]
    known = {seen: (tool.namespace, tool.name, tool.kind) for seen, tool in made.table.items()}
    assert known["agents__close"] == ("agents", "close", "function")
    assert known["apply_patch"] == (None, "apply_patch", "custom")
    call = {"type": "function_call", "call_id": "c", "name": "close", "namespace": "agents", "arguments": "{}"}
    (message,) = messages_of(None, [call])
    assert message["tool_calls"][0]["function"]["name"] == "agents__close"


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        (None, None),
        ("required", "required"),
        ({"type": "function", "name": "ls"}, {"type": "function", "function": {"name": "ls"}}),
        ({"type": "custom", "name": "apply_patch"}, {"type": "custom", "custom": {"name": "apply_patch"}}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ls"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "ls"}}]},
            },
        ),
    ],
)
def test_choices(choice: Any, made: Any) -> None:
    assert chat_tools([FUNCTION, PATCH], choice).choice == made


@pytest.mark.parametrize(
    ("tools", "choice", "told"),
    [
        ([{"type": "web_search", "external_web_access": True}], None, 'web_search = "disabled"'),
        ([{"type": "local_shell"}], None, "tools[0] is of type 'local_shell', which needs a provider"),
        ([FUNCTION, {"type": "mcp", "server_label": "x"}], None, "tools[1] is of type 'mcp'"),
        ([{"type": "functions"}], None, "Did you mean 'function'?"),
        ([{"type": 5}], None, "tools[0] is of type 5"),
        ([FUNCTION, FUNCTION], None, "tools[1] has the name 'ls' of another tool"),
        ([{"type": "function"}], None, "tools[0] has no name"),
        ([{"type": "namespace", "name": "n", "tools": 3}], None, "expected a name and a list of tools"),
        ([{**SPACE, "tools": [{"type": "web_search"}]}], None, "tools[0].tools[0] is of type 'web_search'"),
        ([FUNCTION], {"type": "function", "name": "sl"}, "names the tool 'sl'"),
        ([FUNCTION], {"type": "web_search_preview"}, "tool_choice is of type 'web_search_preview'"),
        ([FUNCTION], {"type": "allowed_tools", "tools": 4}, "needs a list of tools"),
    ],
)
def test_tools_that_cannot_be_offered(tools: list[dict[str, Any]], choice: Any, told: str) -> None:
    with pytest.raises(RequestError) as error:
        chat_tools(tools, choice)
    assert told in str(error.value)
