"""Which format is taken: arguments first, then the checkpoint; and what is wrong with them is said before the start."""

from pathlib import Path

import msgspec
import pytest

from core.api.errors import ConfigError
from core_config.resolve import resolve
from core_formats.answers.settings import AnswerSettings
from core_formats.row_files import read_rows
from core_formats.selection import answer_format

HERMES = "{{ '<tool_call>' }}{{ arguments }}{{ '</tool_call>' }}<think></think>"
ROW = '[[row]]\nname = "mine"\ntool_names = ["mine"]\n[[row.calls]]\nopen = "<mine>"\nclose = "</mine>"\n'


def chosen(template: str = "", **settings: object) -> tuple[str, bool, bool, str]:
    found = answer_format(AnswerSettings(**settings), template, {"<s>": 0, "<mine>": 1})  # type: ignore[arg-type]
    return found.row.name, bool(found.row.calls), found.row.reasoning is not None, found.reason


def test_order() -> None:
    assert chosen()[:3] == ("text", False, False)
    name, calls, reasoning, why = chosen(HERMES)
    assert (name, calls, reasoning) == ("hermes", True, True) and "chat template" in why
    name, calls, reasoning, why = chosen(HERMES, tool_call_parser="mistral")
    assert name.startswith("mistral") and calls and reasoning
    assert "--tool-call-parser mistral" in why and "chat template" in why
    assert chosen(HERMES, tool_call_parser="none")[1:3] == (False, True)
    assert chosen(HERMES, reasoning_parser="none")[1:3] == (True, False)
    name, _, _, why = chosen(tool_call_parser="hermes", reasoning_parser="deepseek_r1")
    assert why == "--tool-call-parser hermes; --reasoning-parser deepseek_r1"


def test_markers_of_reasoning_may_be_given() -> None:
    found = answer_format(AnswerSettings(reasoning_markers=("[T]", "[/T]")), HERMES, {"[T]": 7, "<s>": 1})
    assert found.row.reasoning is not None and found.row.reasoning.open == ("[T]",)
    assert found.special_tokens == ("[T]",)


def test_further_rows_come_first() -> None:
    rows = tuple(msgspec.to_builtins(row) for row in read_rows(ROW))
    found = answer_format(
        AnswerSettings(tool_call_parser="mine", rows=rows), None, {"<mine>": 3, "<other>": 4}, stop_ids=[3]
    )
    assert (found.row.name, found.special_tokens, found.stops) == ("mine", ("<mine>",), ("<mine>",))


def test_arguments(tmp_path: Path, tiny_llama: Path) -> None:
    file = tmp_path / "rows.toml"
    file.write_text(ROW)
    given = {"model": str(tiny_llama), "tool_parser_plugin": str(file), "tool_call_parser": "mine"}
    answers = resolve(given, context="serve").server.answers
    assert answer_format(answers, None, {}).row.name == "mine"
    given["reasoning_config"] = {"reasoning_start_str": "[T]", "reasoning_end_str": "[/T]"}
    assert resolve(given, context="serve").server.answers.reasoning_markers == ("[T]", "[/T]")
    assert resolve({"model": str(tiny_llama)}, context="serve").server.answers == AnswerSettings()


WRONG = {
    "hermos": ({"tool_call_parser": "hermos"}, "'hermes'"),
    "qwen9": ({"reasoning_parser": "qwen9"}, "--reasoning-parser qwen9"),
    "no file": ({"tool_parser_plugin": "/nowhere.toml"}, "no such file"),
    "no rows": ({"reasoning_parser_plugin": __file__}, "ROWS"),
    "half": ({"reasoning_config": {"reasoning_start_str": "[T]"}}, "reasoning_end_str"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_the_start(name: str, tiny_llama: Path) -> None:
    given, words = WRONG[name]
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(tiny_llama), **given}, context="serve")
