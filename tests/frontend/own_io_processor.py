"""An IO processor in one file, for tests: the kit's template, with questions that make it fail."""

from pathlib import Path

from core.api.config import ResolvedPlugin
from core.plugin.manifest import sha256_of
from core_frontend.io.process import IOSettings
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import plugin

SOURCE = (TEMPLATES / "io_processor/core_my_plugin/processor.py").read_text()
CHANGES = [
    ("return Prompts([data.question", "trouble(data.question)\n        return Prompts([data.question"),
    ("question, *passages =", "trouble(data.question.removeprefix('after '))\n        question, *passages ="),
]
TROUBLE = """

def trouble(question: str) -> None:
    if question == "raise":
        raise ZeroDivisionError("no such passage")
    if question == "leave":
        raise SystemExit(0)
    if question == "end":
        import os
        os._exit(7)
    if question == "hang":
        import time
        time.sleep(600)
"""


def write_plugin(folder: Path) -> Path:
    """Write the plugin, called `mine`."""
    source = plugin(folder, "io_processor", SOURCE + TROUBLE, CHANGES).replace('name="cheat"', 'name="mine"')
    build = "\ndef build(module):\n    import types\n    return module.Passages(types.SimpleNamespace(passages=2))\n"
    path = folder / "mine.py"
    path.write_text(source + build)
    return path


def settings(folder: Path) -> IOSettings:
    """What loads it."""
    path = write_plugin(folder)
    return IOSettings(ResolvedPlugin(kind="io_processor", name="mine", target=f"file:{path}", sha256=sha256_of(path)))
