"""Which format is taken: arguments first, then the checkpoint; and what is wrong with them is said before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.api.config import AnswerSettings
from core.formats.selection import answer_format, problems_of

HERMES = "{{ '<tool_call>' }}{{ arguments }}{{ '</tool_call>' }}<think></think>"
ROW = '[[row]]\nname = "mine"\ntool_names = ["mine"]\n[[row.calls]]\nopen = "<mine>"\nclose = "</mine>"\n'


def chosen(template: str = "", **settings: object) -> tuple[str, bool, bool, str]:
    found = answer_format(AnswerSettings(**settings), template, ["<s>", "<mine>"])  # type: ignore[arg-type]
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
    found = answer_format(AnswerSettings(reasoning_markers=("[T]", "[/T]")), HERMES, ["[T]", "<s>"])
    assert found.row.reasoning is not None and found.row.reasoning.open == ("[T]",)
    assert found.special_tokens == ("[T]",)


def test_rows_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.toml"
    file.write_text(ROW)
    settings = AnswerSettings(tool_call_parser="mine", format_files=(str(file),))
    assert problems_of(settings) == []
    found = answer_format(settings, None, ["<mine>", "<other>"])
    assert (found.row.name, found.special_tokens) == ("mine", ("<mine>",))


@pytest.mark.parametrize("text", [None, "def parser(): ...", "[[row]]\nname = 5\n", "[[row]]\nnome = 'x'\n"])
def test_files_that_are_none(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "rows.toml"
    if text is not None:
        file.write_text(text)
    (problem,) = problems_of(AnswerSettings(format_files=(str(file),)))
    assert "rows.toml: no file of response formats" in problem


def test_names_that_are_none() -> None:
    problems = problems_of(AnswerSettings(tool_call_parser="hermos", reasoning_parser="qwen9"))
    assert "--tool-call-parser hermos" in problems[0] and "'hermes'" in problems[0]
    assert "--reasoning-parser qwen9" in problems[1]
