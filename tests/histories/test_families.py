"""What changed between two turns, with the templates of all response formats: every cause is right."""

import json

import pytest

from tests.histories.conversations import SYSTEM, TURNS, USER, Turns, answered, template
from tests.response_formats.answers import OPENAI_TOOLS

CALL = [("get_weather", {"city": "Paris", "days": 3})]
THINKING = [name for name, text in TURNS.items() if "reasoning_content" in text]


@pytest.mark.parametrize("name", THINKING)
def test_reasoning_that_the_template_drops(name):
    told = Turns(template(name), template(name, drops=True), answered(reasoning="The user wants the weather.")).told()
    assert (told.cause, told.message, told.role, told.field) == (
        "template_rewrote",
        2,
        "assistant",
        "reasoning_content",
    )
    assert "chat_template_kwargs" in told.advice


@pytest.mark.parametrize("name", THINKING)
def test_reasoning_of_a_turn_with_calls_that_the_template_drops_when_a_user_speaks(name):
    called = answered("Let me look.", "The user wants the weather.", CALL)
    first = [SYSTEM, USER, called, {"role": "tool", "content": "Rain, 12 degrees."}]
    told = Turns(template(name), template(name, drops=True), answered("It rains."), first=first).told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", 2, "reasoning_content")
    assert "chat_template_kwargs" in told.advice


@pytest.mark.parametrize("name", THINKING)
def test_reasoning_that_the_client_does_not_return(name):
    same = template(name)
    told = Turns(same, same, answered(reasoning="The user wants the weather."), returned=answered()).told()
    assert (told.cause, told.message, told.field) == ("history_changed", 2, "reasoning_content")
    assert "reasoning_content" in told.advice


@pytest.mark.parametrize("name", TURNS)
def test_an_answer_that_the_template_trims(name):
    message = answered("  It rains, as it often does.  ")
    told = Turns(template(name), template(name, trims=True), message).told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", 2, "content")
    assert "trims" in told.advice


@pytest.mark.parametrize("name", TURNS)
def test_a_question_that_the_client_changes(name):
    same = template(name)
    other = {"role": "user", "content": USER["content"].replace("Paris", "Rome")}
    told = Turns(same, same, answered(), second=[SYSTEM, other]).told()
    assert (told.cause, told.message, told.role, told.field) == ("history_changed", 1, "user", "content")
    assert told.character == USER["content"].index("Paris")
    assert told.after.startswith("Rome") and told.before.endswith("weather in ")


@pytest.mark.parametrize("name", TURNS)
def test_a_date_that_the_template_writes(name):
    told = Turns(template(name, date="Sunday"), template(name, date="Monday"), answered()).told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", None, "template")
    assert told.after.startswith("Mon") and "date" in told.advice


@pytest.mark.parametrize("name", TURNS)
def test_tools_in_another_order(name):
    same = template(name, tools=True)
    told = Turns(same, same, answered(), later_tools=OPENAI_TOOLS[::-1]).told()
    assert (told.cause, told.message) == ("tools_changed", None)
    assert "order" in told.advice
    fewer = Turns(same, same, answered(), later_tools=OPENAI_TOOLS[:1]).told()
    assert fewer.cause == "tools_changed" and "Other tools" in fewer.advice


@pytest.mark.parametrize("name", [name for name, text in TURNS.items() if "arguments | tojson" in text])
def test_arguments_that_the_template_writes_anew(name):
    same = template(name)
    turns = Turns(same, same, answered("Let me look.", calls=CALL))
    whole = same.render([*turns.first, turns.answer], add_generation_prompt=False)
    answer = whole[len(same.render(turns.first)) :]
    turns.raw = answer.replace(json.dumps(CALL[0][1]), '{"city":"Paris","days":3}')
    assert turns.raw != answer
    told = turns.told()
    assert (told.cause, told.message, told.field) == ("template_rewrote", 2, "tool_calls")
    assert "arguments" in told.advice


@pytest.mark.parametrize("name", TURNS)
def test_other_tokens_for_the_same_text(name):
    same = template(name)
    turns = Turns(
        same, same, answered("It rains, and it will rain for some days to come, as it does in spring in Paris.")
    )
    text = same.render([*turns.first, turns.answer], add_generation_prompt=False)
    told = turns.told(place=text.index("rains,"))
    assert (told.cause, told.role) == ("retokenized", "assistant"), told
    assert (told.field, told.character) == ("content", 3) and told.after.startswith("rains, and")
