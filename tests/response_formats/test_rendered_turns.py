"""What templates render, parsers return: every row, at every split point, in random cuttings and truncated."""

import random

import pytest

from core_formats.answers.events import ReasoningDelta
from core_formats.row_files import own_rows
from core_tokens.chat.template_sandbox import TemplateSandbox
from tests.response_formats.answers import CALLS, OPENAI_TOOLS, calls_of, parsed, rendered, text_of, turns
from tests.response_formats.hostile import differs

FEW = [("get_weather", {"city": 'R"<', "days": 1}), ("now", {})]
ROWS = {row.name: row for row in own_rows()}
TURNS = turns()
ENDS = [
    "<|im_end|>", "<|end_of_text|>", "</longcat_s>", "<|endoftext|>", "<end_of_sentence>", "</s>", "<|eos|>",
    "<|eom|>",
]  # fmt: skip
ENDS += [
    "<|end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<seed:eos>",
    "[e~[",
    "<|EOT|>",
]
ENDS += [
    "<|observation|>",
    "<|endofassistant|>",
    "<turn|>",
    "<end_of_turn>",
    "<|assistant_end|>",
    "<SPECIAL_12>",
    "<|end_of_msg|>",
    "<｜hy_eos:opensource｜>",
]


def whole(name, calls, content="Let me <look> {up} [that].", reasoning="The user < wants </thi\nan answer."):
    """A rendered turn without the token that ends it."""
    text = rendered(TURNS[name], content, reasoning, calls)
    for end in ENDS:
        text = text.removesuffix(end)
    return text


def test_every_row_with_calls_has_a_turn():
    assert set(TURNS) == {row.name for row in ROWS.values() if row.calls}


@pytest.mark.parametrize("name", TURNS)
def test_the_sandbox_changes_no_text(name):
    """With its bounds of operators, methods and filters: the same as transformers renders."""
    lines = TURNS[name].rstrip("\n").replace("%}\n", '%}{{ "\\n" }}')
    template = TemplateSandbox().from_string("{% for message in messages %}" + lines + "{% endfor %}")
    for content, reasoning, calls in (("Text.", "Hm.", CALLS), ("", "", FEW), ("Text.", "", [])):
        made = [
            {"type": "function", "id": f"abcdefgh{index}", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": made}
        values = TemplateSandbox.limited({"messages": [message], "tools": OPENAI_TOOLS})
        assert template.render(values) == rendered(TURNS[name], content, reasoning, calls)


@pytest.mark.parametrize("name", TURNS)
def test_calls_text_and_reasoning_come_back(name):
    row = ROWS[name]
    text = whole(name, CALLS)
    events = parsed(row, text)
    assert calls_of(events) == CALLS
    assert text_of(events) == ("Let me <look> {up} [that]." if "Let me" in text else "")
    thinks = row.reasoning is not None and "The user" in text
    assert text_of(events, ReasoningDelta) == ("The user < wants </thi\nan answer." if thinks else "")


@pytest.mark.parametrize("name", TURNS)
def test_an_answer_without_calls_is_text(name):
    events = parsed(ROWS[name], whole(name, [], content="It is warm.\n\n{No} [call](x).", reasoning=""))
    assert calls_of(events) == []
    assert text_of(events).strip() == "It is warm.\n\n{No} [call](x)."


@pytest.mark.parametrize("name", TURNS)
def test_every_split_point_gives_the_same(name):
    row = ROWS[name]
    text = whole(name, FEW, content="So <a", reasoning="Hm </t")
    expected = parsed(row, text)
    assert calls_of(expected) == FEW
    for cut in range(1, len(text)):
        assert parsed(row, text, [cut]) == expected, cut
    assert parsed(row, text, range(1, len(text))) == expected


@pytest.mark.parametrize("name", TURNS)
def test_cuttings_of_whole_and_of_truncated_answers(name):
    differences = cuttings(name, 6, random.Random(name))
    assert differences == []


@pytest.mark.parametrize("name", ROWS)
def test_answers_that_make_no_sense_are_read_the_same_in_any_pieces(name):
    source = random.Random(name)
    assert [found for _ in range(12) if (found := differs(ROWS[name], source))] == []


def cuttings(name, count, source):
    """Random cuttings whose events differ from those of the same text in one piece."""
    row = ROWS[name]
    text = whole(name, CALLS)
    found = []
    for number in range(count):
        complete = number % 3 == 0
        part = text if complete else text[: source.randrange(1, len(text))]
        cuts = []
        at = 0
        longest = source.choice([1, 2, 8, 40])
        while at < len(part):
            at += source.randint(1, longest)
            cuts.append(at)
        if parsed(row, part, cuts, complete=complete) != parsed(row, part, complete=complete):
            found.append((name, part, cuts))
    return found
