"""The kit's checks of IO processors: the template keeps them, and each cheat is found by the check that is meant to."""

from pathlib import Path

import pytest

from core_kit import cases
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin

PASSAGES = (TEMPLATES / "io_processor/core_my_plugin/processor.py").read_text()
BUILD = "\ndef build(module):\n    import types\n    return module.Passages(types.SimpleNamespace(passages=2))\n"
EXAMPLES = ", capabilities={'examples': [{'question': 'a', 'document': 'b\\n\\nc'}]}"
CHEATS = {
    "has no examples": ([], "", "`examples` has data"),
    "gives no prompts": (
        [("Prompts([data.question, *_split(data.document)]", "Prompts([]")],
        EXAMPLES,
        "`examples` has data",
    ),
    "sets what it may not": ([('{"task": "embed"', '{"user": "me"')], EXAMPLES, "`examples` has data"),
    "answers with an object": (
        [('return {"passages"', 'return object() or {"passages"')],
        EXAMPLES,
        "`examples` has data",
    ),
    "fails on wrong data": (
        [("except msgspec.ValidationError", "except ZeroDivisionError")],
        EXAMPLES,
        "Wrong data of any",
    ),
    "remembers requests": (
        [("texts = _split(data.document)", "texts = _split(data.document); self._passages = 3 - self._passages")],
        EXAMPLES,
        "the same prompts and answer again",
    ),
    "makes answers up": ([("float(passage @ question)", "0.5")], EXAMPLES, "follows from the outputs"),
}


def test_the_template_keeps_every_promise(tmp_path: Path) -> None:
    path = tmp_path / "cheat.py"
    path.write_text(plugin(tmp_path, "io_processor", PASSAGES, spec=EXAMPLES) + BUILD)
    found = [case.finding() for case in cases("io_processor", "cheat", plugins=str(path))]
    wrong = [finding for finding in found if finding.verdict not in ("passed", "skipped")]
    assert not wrong, wrong
    assert sum(finding.verdict == "passed" for finding in found) >= 11


@pytest.mark.parametrize(("changes", "spec", "words"), CHEATS.values(), ids=CHEATS)
def test_cheats_are_found(tmp_path: Path, changes: list[tuple[str, str]], spec: str, words: str) -> None:
    failing(tmp_path, "io_processor", plugin(tmp_path, "io_processor", PASSAGES, changes, spec) + BUILD, words)
