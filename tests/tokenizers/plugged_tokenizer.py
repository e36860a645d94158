"""A tokenizer plugin in one file, for tests: the kit's template, with texts that make it fail."""

from pathlib import Path

from core.api.config import ResolvedPlugin
from core.plugin.manifest import sha256_of
from core_kit.skeleton import TEMPLATES
from core_tokens.plugged import Plug
from core_tokens.tokenizer import Tokenizer
from core_tokens.tokenizer_source import TokenizerSource
from tests.kit.cheats import plugin

SOURCE = (TEMPLATES / "tokenizer/core_my_plugin/tokenizer.py").read_text()
TROUBLE = """
        if "RAISE" in text:
            raise ZeroDivisionError("no such word")
        if "REFUSE" in text:
            from core.api.errors import RequestError
            raise RequestError("the text is in no language of mine")
        if "HANG" in text:
            import time
            time.sleep(600)
        if "CONTROL" in text:
            return [self.vocab_size - 1]
        if self._pattern is None:"""
PAIRS = "ends = Ends((1,), (2,), (2, 2), 1)"


def write_plugin(folder: Path, name: str = "mine", pairs: bool = False) -> Path:
    """Write the plugin, called `name`; pairs: with bytes as tokens around texts and between two of them."""
    changes = [("\n        if self._pattern is None:", TROUBLE)]
    if pairs:
        changes.append(("ends = Ends()", PAIRS))
    source = plugin(folder, "tokenizer", SOURCE, changes)
    words = folder / "model"
    words.mkdir(exist_ok=True)
    (words / "words.json").write_text('["hello", "hell", "wörld"]')
    source = source.replace('name="cheat"', f'name="{name}"').replace(
        "return build(module)", "return build(module, context)"
    )
    build = "\ndef build(module, context):\n    import types\n"
    build += "    return module.WordsAndBytes(context.options['directory'], types.SimpleNamespace(end='<|end|>'))\n"
    path = folder / f"{name}.py"
    path.write_text(source + build)
    return path


def opened(folder: Path, **options: bool) -> Tokenizer:
    """The engine's tokenizer over the plugin."""
    path = write_plugin(folder, **options)
    row = ResolvedPlugin(kind="tokenizer", name="mine", target=f"file:{path}", sha256=sha256_of(path))
    return Tokenizer.from_source(TokenizerSource(directory=str(folder / "model")), plug=Plug(row))
