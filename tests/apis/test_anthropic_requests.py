"""Bodies of the Messages API as chat requests: what reaches the template, and what is refused."""

import json
import logging
from typing import Any

import msgspec
import pytest

from core.api.errors import RequestError
from core_apis.anthropic import chat as anthropic
from core_apis.anthropic.signature import signature
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparationSettings
from core_apis.protocol.anthropic import MessagesRequest
from core_apis.protocol.chat import ChatRequest
from core_apis.tolerated_fields import MOST_NAMES, ToleratedFields
from core_formats.server_limits import ServerLimits
from core_tokens.chat.chat_template import ChatTemplate
from tests.apis.conftest import RunningServer
from tests.apis.fake_engine import TEMPLATE, make_tokenizer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Köln"}}
FIRST_ONLY = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}{{ raise_exception('system must be first') }}"
    "{% endif %}{{ m['role'] + m['content'] }}{% endfor %}"
)
GATHERING = (
    "{% for m in messages if m['role'] == 'system' %}{{ m['content'] }}{% endfor %}"
    "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + m['content'] }}{% endfor %}"
)


def chat_of(*, late_system: bool = True, **fields: Any) -> ChatRequest:
    given = {"max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}], **fields}
    body = msgspec.json.decode(json.dumps(given), type=MessagesRequest)
    return anthropic.chat_request(body, late_system=late_system)


def messages_of(*turns: tuple[str, Any], **fields: Any) -> list[dict[str, Any]]:
    made = chat_of(messages=[{"role": role, "content": content} for role, content in turns], **fields)
    return made.messages or []


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def thought(words: str, signed: str | None = None) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature(words) if signed is None else signed}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **more}


def test_system_prompts_come_first() -> None:
    marked = text("B", cache_control={"type": "ephemeral"})
    assert messages_of(("user", "Hi"), system="A")[0] == {"role": "system", "content": "A"}
    assert messages_of(("user", "Hi"), system=[text("A"), marked])[0] == {"role": "system", "content": "A\n\nB"}
    billing = text("x-anthropic-billing-header: cc_version=1; cch=4f2a;")
    assert messages_of(("user", "Hi"), system=[billing, text("A")])[0]["content"] == "A"
    assert messages_of(("user", "Hi"), system=[billing])[0]["role"] == "user"


def test_pictures_in_results_are_shown_behind_the_last_result() -> None:
    def image(data: str) -> dict[str, Any]:
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}

    calls = [CALL, {**CALL, "id": "c2"}]
    results = [result([text("a"), image("AA")]), {**result([image("BB")], is_error=True), "tool_use_id": "c2"}]
    messages = messages_of(("user", "Hi"), ("assistant", calls), ("user", [*results, text("and?")]))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in messages[2:4]] == ["a", "Error: "]
    urls = [part["image_url"]["url"][-2:] for part in messages[4]["content"][:2]]
    assert urls == ["AA", "BB"]
    assert messages[4]["content"][2] == text("and?")
    assert messages[4]["content"][1].place == "messages[2].content[1].content[0]"


def test_system_messages_stand_where_they_are_if_the_template_shows_them_there() -> None:
    turns = (("user", "Hi"), ("system", "Be brief."), ("assistant", "Yes"), ("user", "Go"))
    roles = [message["role"] for message in messages_of(*turns)]
    assert roles == ["user", "system", "assistant", "user"]
    folded = messages_of(*turns, late_system=False)
    assert [message["role"] for message in folded] == ["user", "assistant", "user"]
    assert folded[0]["content"] == "Hi\n<system>\nBe brief.\n</system>"
    leading = messages_of(("system", "A"), ("user", "Hi"), system="B", late_system=False)
    assert leading[0] == {"role": "system", "content": "B\nA"}


@pytest.mark.parametrize(
    ("template", "shown"), [(TEMPLATE, True), (FIRST_ONLY, False), (GATHERING, False), (None, False)]
)
def test_templates_are_asked_whether_they_show_late_system_messages(template: str | None, shown: bool) -> None:
    assert anthropic.shows_late_system(ChatTemplate(template)) == shown


def test_turns_of_one_role_become_one() -> None:
    made = messages_of(
        ("user", "a"), ("user", [text("b"), text("c")]), ("assistant", "d"), ("assistant", [text("e")]), ("user", "f")
    )
    assert [(message["role"], message["content"]) for message in made] == [
        ("user", "a\nb\nc"),
        ("assistant", "de"),
        ("user", "f"),
    ]


def test_calls_and_their_results() -> None:
    made = messages_of(
        ("user", "Weather?"),
        ("assistant", [thought("Hm."), text("I look."), CALL]),
        ("user", [result([text("sunny"), text("20°")]), text("And now?")]),
    )
    called = {"name": "weather", "arguments": '{"city": "Köln"}'}
    assert made[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "sunny\n20°"},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    ("content", "more", "shown"),
    [
        ("cold", {}, "cold"),
        (None, {}, ""),
        ([], {}, ""),
        ("no such city", {"is_error": True}, "Error: no such city"),
        ([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}], {}, "D"),
        (
            [{"type": "search_result", "source": "http://x", "title": "X", "content": [text("found")]}],
            {},
            "X\nhttp://x\nfound",
        ),
    ],
)
def test_results_are_text(content: Any, more: dict[str, Any], shown: str) -> None:
    made = messages_of(("user", "?"), ("assistant", [CALL]), ("user", [result(content, **more)]))
    assert made[-1]["content"] == shown


def test_documents_of_text_are_read() -> None:
    source = {"type": "content", "content": [text("one"), text("two")]}
    document = {"type": "document", "title": "T", "context": "C", "source": source}
    assert messages_of(("user", [document, text("Sum up")]))[0]["content"] == "T\nC\none\ntwo\nSum up"


def test_thinking_that_is_ours_is_reasoning_again() -> None:
    def reasoning(*content: Any) -> str | None:
        made = messages_of(("user", "?"), ("assistant", [*content, text("!")]), ("user", "more"))
        return made[1].get("reasoning_content")

    assert reasoning(thought("Hm.")) == "Hm."
    assert reasoning(thought("Hm.", "EqQBCkYIARgC")) is None
    assert reasoning({"type": "redacted_thinking", "data": "EqQB"}) is None
    assert reasoning(thought("", signature(""))) is None
    assert reasoning(thought("", signature("Hm."))) is None
    with pytest.raises(RequestError, match=r"messages\[1\].content\[0\] is thinking that was changed"):
        reasoning(thought("Other.", signature("Hm.")))


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("all", [0, 1, 2]),
        (None, [0, 1, 2]),
        ({"type": "all"}, [0, 1, 2]),
        ({"type": "thinking_turns", "value": 1}, [2]),
    ],
)
def test_older_thinking_may_be_cleared(keep: Any, kept: list[int]) -> None:
    turns = []
    for index in range(3):
        turns += [("user", "?"), ("assistant", [thought(str(index)), text("!")])]
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}
    made = messages_of(*turns, ("user", "?"), context_management=edits)
    assert [int(one["reasoning_content"]) for one in made if "reasoning_content" in one] == kept


def test_the_last_answer_is_continued() -> None:
    assert chat_of(
        messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "It"}]
    ).continue_final_message
    assert not chat_of().continue_final_message
    assert not chat_of(
        messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": [CALL]}]
    ).continue_final_message


def test_tools() -> None:
    chat = chat_of(
        tools=[{**TOOL, "type": "custom", "strict": True, "cache_control": {}, "eager_input_streaming": True}]
    )
    function = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA, "strict": True}
    assert chat.tools == [{"type": "function", "function": function}]
    (with_examples,) = chat_of(tools=[{**TOOL, "input_examples": [{"city": "Köln"}]}]).tools or ()
    assert with_examples["function"]["parameters"] == {**SCHEMA, "examples": [{"city": "Köln"}]}
    assert chat_of().tools is None


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tool_choice(given: dict[str, Any], choice: Any) -> None:
    assert chat_of(tools=[TOOL], tool_choice=given).tool_choice == choice
    assert chat_of(tools=[TOOL], tool_choice=given).parallel_tool_calls is None
    alone = chat_of(tools=[TOOL], tool_choice={**given, "disable_parallel_tool_use": True})
    assert alone.parallel_tool_calls is False


def test_sampling_thinking_and_formats() -> None:
    chat = chat_of(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["x"], stream=True, metadata={"user_id": "me"})
    assert (chat.temperature, chat.top_p, chat.top_k, chat.max_tokens, chat.stream) == (0.5, 0.9, 3, 10, True)
    assert (chat.stop, chat.user) == (["x"], "me")
    schema = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_format": schema}, {"output_config": {"format": schema}}):
        form = chat_of(**fields).response_format
        assert form == {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    assert chat_of(thinking={"type": "adaptive"}, output_config={"effort": "high"}).reasoning_effort == "high"
    assert chat_of(thinking={"type": "disabled"}, output_config={"effort": "high"}).reasoning_effort == "none"
    assert chat_of(thinking={"type": "adaptive"}).reasoning_effort is None


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "expected one of: system, user, assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages", "block of type None"),
        ({"messages": [{"role": "user", "content": [text(5)]}]}, "messages", "is no text block"),  # type: ignore[arg-type]
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages", "of type 'tool_use'"),
        ({"messages": [{"role": "user", "content": [result("x")]}]}, "messages", "no earlier message has"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages",
            "documents of plain text only",
        ),
        ({"system": [{"type": "image"}]}, "system", "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools", "'web_search_20250305'"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools", "'bash_20250124'"),
        ({"tools": [{"name": "x"}]}, "tools", "no input_schema"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools", "defer_loading"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools", "allowed_callers"),
        ({"tool_choice": {"type": "anyy"}}, "tool_choice", "Did you mean 'any'?"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice", "without a name"),
        ({"thinking": {"type": "always"}}, "thinking", "expected one of: enabled, adaptive, disabled"),
        ({"thinking": {"type": "enabled"}}, "thinking", "needs a number of tokens"),
        ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking", "thinking.display"),
        ({"output_format": {"type": "xml"}}, "output_config", "expected 'json_schema'"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management",
            "clear_tool_uses_20250919",
        ),
        (
            {
                "context_management": {
                    "edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}]
                }
            },
            "context_management",
            "a value of at least 1",
        ),
    ],
)
def test_refusals_name_the_field_and_the_way_out(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_of(**fields)
    assert caught.value.param == param
    assert said in str(caught.value)


def test_fields_are_used_neutral_refused_or_told() -> None:
    def unknown(**fields: Any) -> list[str]:
        body = json.dumps(fields, separators=(",", ":"))
        return anthropic.check_fields(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))

    assert unknown(model="m", max_tokens=1, metadata={}, service_tier="auto", cache_control={"type": "ephemeral"}) == []
    assert unknown(system="x", a_new_one=1) == ["a_new_one"]
    assert unknown(mcp_servers=[], container=None) == []
    with pytest.raises(RequestError, match="mcp_servers is not served: this server calls no tools"):
        unknown(mcp_servers=[{"url": "x"}])


def test_unknown_fields_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    fields = ToleratedFields()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fields.tell("/v1/messages", ["new"])
        assert len(caplog.records) == 1
        fields.tell("/v1/messages", [f"field{index}" for index in range(1000)])
    assert len(caplog.records) == MOST_NAMES


def test_tokens_are_counted_as_in_a_request(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."}], "system": "A"}
    counted = server.http.post("/v1/messages/count_tokens", json={**body, "future": 1})
    answered = server.http.post("/v1/messages", json={**body, "max_tokens": 1, "future": 1})
    usage = answered.json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_counting_has_no_limit_but_that_of_texts() -> None:
    settings = PreparationSettings(
        served_names=("m",),
        max_model_len=64,
        vocab_size=260,
        max_logprobs=20,
        most_prompts={},
        max_num_queued_tokens=0,
        defaults={},
        chat_template=TEMPLATE,
        limits=ServerLimits(),
    )
    preparation = Preparation(settings, make_tokenizer())
    long = json.dumps({"max_tokens": 5, "messages": [{"role": "user", "content": "x" * 300}]}).encode()
    assert preparation.run("count_tokens", long).count.input_tokens > 300
    with pytest.raises(RequestError, match="tokens fit"):
        preparation.run("messages", long)
