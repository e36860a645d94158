"""The kit's checks of tokenizers: the template keeps them, and each cheat is found by the check that is meant to."""

from pathlib import Path

import pytest

from core_kit import cases
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin

WORDS = (TEMPLATES / "tokenizer/core_my_plugin/tokenizer.py").read_text()
BUILD = (
    "\ndef build(module):\n    import types\n"
    "    return module.WordsAndBytes(None, types.SimpleNamespace(end='<|end|>'))\n"
)
CHEATS = {
    "gives ids beyond its vocabulary": ([("list(text.encode())", "[300] + list(text.encode())")], "Every text has tokens"),
    "gives control tokens": ([("list(text.encode())", "[self.vocab_size - 1] + list(text.encode())")], "Every text has tokens"),
    "fails on some text": ([("list(text.encode())", "list(text.encode('ascii'))")], "Every text has tokens"),
    "leaves spaces out": ([("list(text.encode())", "list(text.strip().encode() or b'x')")], "are the text"),
    "has no spans for its changes": ([("list(text.encode())", "list(text.lower().encode())")], "has a span"),
    "spells a token in text": ([("return bytes([token_id])", "return chr(token_id)")], "fit together"),
    "fails on a token": ([("return bytes([token_id])", "return bytes([token_id - 1])")], "fit together"),
    "has a control token twice": ([("{arguments.end: end}", "{arguments.end: end, '<|x|>': end}")], "fit together"),
    "names a token that is none": ([('{"eos_token": end}', '{"eos_token": end + 1}')], "fit together"),
    "has another identity each time": ([("1\", words", "1\", id(self), words")], "The identity is"),
    "remembers texts": (
        [("if self._pattern is None:", "self._seen = text\n        import time; time.sleep(0.002)\n        text = self._seen\n"
          "        if self._pattern is None:")],
        "Several threads",
    ),
}  # fmt: skip


def test_the_template_keeps_every_promise(tmp_path: Path) -> None:
    path = tmp_path / "cheat.py"
    path.write_text(plugin(tmp_path, "tokenizer", WORDS) + BUILD)
    found = [case.finding() for case in cases("tokenizer", "cheat", plugins=str(path))]
    wrong = [finding for finding in found if finding.verdict not in ("passed", "skipped")]
    assert not wrong, wrong
    assert sum(finding.verdict == "passed" for finding in found) >= 15


@pytest.mark.parametrize(("changes", "words"), CHEATS.values(), ids=CHEATS)
def test_cheats_are_found(tmp_path: Path, changes: list[tuple[str, str]], words: str) -> None:
    failing(tmp_path, "tokenizer", plugin(tmp_path, "tokenizer", WORDS, changes) + BUILD, words)
