"""What changed between two turns, with templates in the styles of twenty families: every cause is right."""

from typing import Any

import pytest

from core_tokens.chat.chat_template import ChatTemplate
from tests.histories.conversations import NEXT, SYSTEM, USER, Turns, answered
from tests.histories.styles import DATE, STYLES, Style
from tests.response_formats.answers import OPENAI_TOOLS

CONTENT = "It rains, and it will rain for some days to come, as it does in spring in Paris."
REASONING = "The user wants the weather."


def rendered_on(style: Style, day: str = "Sunday") -> ChatTemplate:
    return ChatTemplate(style.text.replace(DATE, day))


def turns(style: Style, answer: dict[str, Any], **changes: Any) -> Turns:
    """Two turns, whose raw answer is the text that the template shows for the message while it is the last one."""
    same = rendered_on(style)
    prompt = same.render([SYSTEM, USER], tools=OPENAI_TOOLS)
    whole = same.render([SYSTEM, USER, answer], add_generation_prompt=False, tools=OPENAI_TOOLS)
    end = len(whole) - len(whole.rpartition(str(answer["content"]).strip())[2])
    given = {"earlier": same, "later": same, "raw": str(whole)[len(prompt) : end]}
    return Turns(answer=answer, **(given | changes))


def having(flag: str) -> list[str]:
    return [name for name, style in STYLES.items() if getattr(style, flag)]


@pytest.mark.parametrize("name", STYLES)
def test_a_history_that_is_sent_as_it_was_is_extended(name):
    asked = turns(STYLES[name], answered(CONTENT))
    text = asked.later.render([SYSTEM, USER, asked.answer, NEXT], tools=OPENAI_TOOLS)
    prompt = asked.earlier.render([SYSTEM, USER], tools=OPENAI_TOOLS)
    assert asked.raw is not None and str(text).startswith(str(prompt) + asked.raw)


@pytest.mark.parametrize("name", having("drops"))
def test_reasoning_that_the_template_drops(name):
    told = turns(STYLES[name], answered(CONTENT, REASONING)).told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", 2, "reasoning_content")


@pytest.mark.parametrize("name", having("trims"))
def test_an_answer_that_the_template_trims(name):
    told = turns(STYLES[name], answered(f"{CONTENT}  "), raw=f"  {CONTENT}").told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", 2, "content")


@pytest.mark.parametrize("name", having("has_date"))
def test_a_date_that_the_template_writes(name):
    told = turns(STYLES[name], answered(CONTENT), later=rendered_on(STYLES[name], "Monday")).told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", None, "template")
    assert told.after.startswith("Mon")


@pytest.mark.parametrize("name", having("has_tools"))
def test_tools_in_another_order(name):
    told = turns(STYLES[name], answered(CONTENT), later_tools=OPENAI_TOOLS[::-1]).told()
    assert (told.cause, told.message) == ("tools_changed", None)


@pytest.mark.parametrize("name", STYLES)
def test_a_question_that_the_client_changes(name):
    other = {"role": "user", "content": USER["content"].replace("Paris", "Rome")}
    told = turns(STYLES[name], answered(CONTENT), second=[SYSTEM, other]).told()
    assert (told.cause, told.message, told.field) == ("history_changed", 1, "content")
    assert told.character == USER["content"].index("Paris")


@pytest.mark.parametrize("name", STYLES)
def test_other_tokens_for_the_same_text(name):
    asked = turns(STYLES[name], answered(CONTENT))
    text = str(asked.later.render([SYSTEM, USER, asked.answer, NEXT], tools=OPENAI_TOOLS))
    told = asked.told(place=text.index("rains,"))
    assert (told.cause, told.message, told.role) == ("retokenized", 2, "assistant")
    assert (told.field, told.character) == ("content", CONTENT.index("rains,"))
