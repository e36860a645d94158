"""The kit's checks of processors of media: the template keeps them, and each cheat is found by the check that is meant to."""

from pathlib import Path

import pytest

from core_kit import cases
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin

SQUARES = (TEMPLATES / "processor/core_my_plugin/processor.py").read_text()
BUILD = (
    "\ndef build(module):\n    import types\n"
    "    media = types.SimpleNamespace(model=FOLDER, model_type='llava', placeholder='<image>')\n"
    "    return module.Squares(media, types.SimpleNamespace(grey=0.5))\n"
)
CHEATS = {
    "fails on thin pictures": (
        [("(max(round(scale * each), 1) for each", "(round(scale * each) for each")],
        "",
        "An item of every size",
    ),
    "gives lists": ([(".transpose(2, 0, 1)[None]", ".tolist()")], "", "An item of every size"),
    "gives no text": ([("Features(self._text", "Features(''")], "", "An item of every size"),
    "gives NaN": ([("- MEAN) / STD", "- MEAN) / (STD * 0)")], "", "An item of every size"),
    "remembers pictures": (
        [("scale = self._side", "self._grey += 0.1\n        scale = self._side")],
        "",
        "the same features again",
    ),
    "draws on pictures": (
        [("scale = self._side", "picture.putpixel((0, 0), (1, 2, 3))\n        scale = self._side")],
        "",
        "the same features again",
    ),
    "has another identity each time": ([('f"squares 1', 'f"squares {id(self)}')], "", "The identity is a text"),
    "declares what nobody knows": ([], ", capabilities={'modalities': ['smell']}", "lists what it takes"),
}


def source(tmp_path: Path, changes: list[tuple[str, str]], spec: str) -> str:
    """The template's processor with some words changed, for the kit's own LLaVA."""
    (tmp_path / "model").mkdir()
    from core_kit.fixtures.media_settings import media_of

    folder = media_of(tmp_path / "model", None, "cheat", None).model
    return f"FOLDER = {folder!r}\n" + plugin(tmp_path, "processor", SQUARES, changes, spec) + BUILD


def test_the_template_keeps_every_promise(tmp_path: Path) -> None:
    path = tmp_path / "cheat.py"
    path.write_text(source(tmp_path, [], ""))
    found = [case.finding() for case in cases("processor", "cheat", plugins=str(path))]
    wrong = [finding for finding in found if finding.verdict not in ("passed", "skipped")]
    assert not wrong, wrong
    assert sum(finding.verdict == "passed" for finding in found) >= 13


@pytest.mark.parametrize(("changes", "spec", "words"), CHEATS.values(), ids=CHEATS)
def test_cheats_are_found(tmp_path: Path, changes: list[tuple[str, str]], spec: str, words: str) -> None:
    failing(tmp_path, "processor", source(tmp_path, changes, spec), words)
