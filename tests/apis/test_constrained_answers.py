"""What an answer is held to: calls that must come, one call at most, strict arguments, a form or a limit of reasoning.

xgrammar reads the constraint that a body is given, and says which answers may come.
"""

import json
from typing import Any

import pytest

from core.api.config import StructuredOutputsConfig
from core.api.errors import RequestError
from core.api.structured_outputs import StructuredOutputsParams
from core_apis.answers.plan import answer_plan
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparationSettings, PreparedChat
from core_apis.protocol.chat import ChatRequest
from core_formats.answers.settings import AnswerSettings
from core_formats.selection import answer_format
from core_formats.server_limits import ServerLimits
from core_formats.tool_use import ToolUse
from core_grammars.markers import Markers
from core_grammars.spec import grammar_spec
from core_tokens.tokenizer import Tokenizer
from tests.apis.fake_engine import EOS, make_tokenizer
from tests.apis.test_tool_calls import CALL, HI, MARKERS, OTHER, PATCH, QWEN, THOUGHT, WEATHER, function

xgrammar = pytest.importorskip("xgrammar")

TIME = function(name="time")
WRONG = CALL.replace("city", "town")
NAMED = {"type": "function", "function": {"name": "weather"}}


def allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}


@pytest.fixture(scope="module", params=["markers are special tokens", "markers are text"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make_tokenizer(QWEN, MARKERS if "special" in request.param else ())


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Any:
    vocabulary = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
    for index in tokenizer.special_ids:
        vocabulary[index] = b"\xff" + vocabulary[index]  # no text
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[EOS])
    return xgrammar.GrammarCompiler(info)


def prepare(tokenizer: Tokenizer, answers: AnswerSettings | None = None, **body: Any) -> PreparedChat:
    settings = PreparationSettings(
        served_names=("m",),
        max_model_len=4096,
        vocab_size=tokenizer.vocab_size,
        max_logprobs=5,
        most_prompts={},
        max_num_queued_tokens=0,
        defaults={},
        chat_template=QWEN,
        format=answer_format(answers or AnswerSettings(), QWEN, tokenizer.special_texts),
        limits=ServerLimits(),
    )
    return Preparation(settings, tokenizer).run("chat", json.dumps({"messages": HI, **body}).encode())


def accepts(compiler: Any, tokenizer: Tokenizer, prepared: PreparedChat, text: str) -> bool:
    """Whether the answer may be this, and end there."""
    wanted = prepared.params.structured_outputs
    if wanted is None:
        return True
    markers = Markers({index: text for text, index in tokenizer.special_texts.items()})
    tag = markers.as_tokens(json.loads(str(wanted.structural_tag)))
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(json.dumps(tag)))
    mask = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)
    for index in [*tokenizer.encode(text, add_special_tokens=False), EOS]:
        mask.fill_(-1)  # every token may come, unless the matcher says otherwise
        matcher.fill_next_token_bitmask(mask)
        is_set = int(mask[0][index // 32]) >> (index % 32) & 1
        if not is_set or not matcher.accept_token(index):
            return False
    return True


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"tool_choice": "required"},
        [CALL, f"{CALL}\n{OTHER}", THOUGHT + CALL],
        ["Sunny.", "", WRONG, THOUGHT + "Sunny."],
    ),
    ({"tool_choice": "required", "parallel_tool_calls": False}, [CALL], [f"{CALL}\n{OTHER}", "Sunny."]),
    ({"tool_choice": NAMED}, [CALL, THOUGHT + CALL], ["Sunny.", CALL.replace("weather", "time")]),
    ({"tool_choice": allowed("required")}, [CALL], ["Sunny.", CALL.replace("weather", "time")]),
    ({"tool_choice": allowed("auto")}, [CALL, "Sunny."], [CALL.replace("weather", "time")]),
    ({"parallel_tool_calls": False}, [CALL, "Sunny.", f"I look.\n{CALL}"], [f"{CALL}\n{OTHER}"]),
    ({"tools": [function(strict=True)]}, [CALL, "Sunny.", THOUGHT + "Sunny."], [WRONG]),
    ({"thinking_token_budget": 12}, ["Sunny.", THOUGHT + CALL], [THOUGHT.replace("wait", "wait longer") + "Sunny."]),
    ({"max_thinking_tokens": 0}, ["Sunny.", "<think></think>Sunny."], [THOUGHT + "Sunny."]),
]


@pytest.mark.parametrize(("body", "may", "may_not"), CASES)
def test_what_may_come(
    tokenizer: Tokenizer, compiler: Any, body: dict[str, Any], may: list[str], may_not: list[str]
) -> None:
    prepared = prepare(tokenizer, **{"tools": [WEATHER, TIME], **body})
    assert [accepts(compiler, tokenizer, prepared, text) for text in may] == [True] * len(may)
    assert [accepts(compiler, tokenizer, prepared, text) for text in may_not] == [False] * len(may_not)


def test_a_model_left_alone_is_not_held_to_anything(tokenizer: Tokenizer) -> None:
    for body in (
        {},
        {"tools": [WEATHER, PATCH]},
        {"tools": [WEATHER], "tool_choice": "none", "parallel_tool_calls": False},
    ):
        assert prepare(tokenizer, **body).params.structured_outputs is None


def test_a_form_behind_reasoning(tokenizer: Tokenizer, compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = StructuredOutputsParams(regex="[0-9]+")
    plain = ChatRequest.params
    monkeypatch.setattr(ChatRequest, "params", lambda body, defaults: _with(plain(body, defaults), asked))
    prepared = prepare(tokenizer)
    assert accepts(compiler, tokenizer, prepared, THOUGHT + "42") and accepts(compiler, tokenizer, prepared, "42")
    assert not accepts(compiler, tokenizer, prepared, THOUGHT + "Sunny.")


def test_a_form_from_the_first_token_leaves_no_reasoning(tokenizer: Tokenizer, compiler: Any) -> None:
    """With --structured-outputs-config.enable_in_reasoning; an answer without a form is free."""
    held = AnswerSettings(form_in_reasoning=True)
    prepared = prepare(tokenizer, held, structured_outputs={"regex": "[0-9]+"})
    assert accepts(compiler, tokenizer, prepared, "42") and not accepts(compiler, tokenizer, prepared, THOUGHT + "42")
    assert accepts(compiler, tokenizer, prepare(tokenizer, held), THOUGHT + "Sunny.")
    limited = prepare(tokenizer, held, max_thinking_tokens=12)
    assert accepts(compiler, tokenizer, limited, THOUGHT + "Sunny.")
    with pytest.raises(RequestError, match="no reasoning to limit") as told:
        prepare(tokenizer, held, structured_outputs={"regex": "[0-9]+"}, max_thinking_tokens=12)
    assert told.value.param == "max_thinking_tokens"


def test_how_it_is_written_holds_behind_reasoning(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = StructuredOutputsParams(json={"type": "object"}, whitespace_pattern=" ?", backend="llguidance")
    plain = ChatRequest.params
    monkeypatch.setattr(ChatRequest, "params", lambda body, defaults: _with(plain(body, defaults), asked))
    held = prepare(tokenizer).params.structured_outputs
    assert held is not None
    spec = grammar_spec(held, StructuredOutputsConfig(disable_additional_properties=True))
    assert (spec.kind, spec.whitespace_pattern) == ("structural_tag", " ?") and not spec.additional_properties


def _with(params: Any, asked: StructuredOutputsParams) -> Any:
    params.structured_outputs = asked
    return params


def test_allowed_tools_are_those_that_are_parsed_while_all_are_shown(tokenizer: Tokenizer) -> None:
    prepared = prepare(tokenizer, tools=[WEATHER, TIME], tool_choice=allowed("auto"))
    assert [tool.name for tool in prepared.tools] == ["weather"]
    assert '"time"' in str(prepared.prompts[0].text)


def test_a_limit_needs_to_know_the_reasoning(tokenizer: Tokenizer) -> None:
    settings = AnswerSettings(reasoning_parser="none")
    served = answer_format(settings, QWEN, {})
    assert served.row.reasoning is None and served.row.calls
    with pytest.raises(RequestError, match="--reasoning-parser"):
        answer_plan(ChatRequest(messages=HI, thinking_budget=5), ToolUse(), served, auto=True)
