"""Every `core serve` that a page shows is a command that the engine takes: resolved as by `core config explain`, for a dense
model of 8B with dummy weights, it leads to no problem and no warning but those that `EXPECTED` has, with the reason. The flags
of all other commands are those of their help.
"""

import json
import re
from pathlib import Path

import pytest

from core.api.errors import ConfigError
from core.args.schema import schema
from core.commands.main import main
from tests.docs.page_commands import all_commands, commands_of, pages
from tests.docs.recipes import complaints
from tests.layout import ROOT

RECIPES = ROOT / "docs" / "recipes"
SHOWN = {
    path.relative_to(ROOT).as_posix(): commands
    for path in pages()
    if path.parent != RECIPES and (commands := list(commands_of(path.read_text())))
}
"""{page: its commands}; those of recipes are resolved with the models that they are for (test_recipes.py)."""
SEVERAL = ("--model-budget", "--models")
"""Flags of `core serve` with several models, which stand before all arguments."""
EXPECTED = {
    "belongs to GGUF models": "a projector, of a GGUF file",
    "only ranks with the same heads divide": "a model with fewer heads of keys",
    "each gets fewer drafts": "told to a reader who starts the command as it is",
    "--kv-sharing-fast-prefill has no effect": "a model whose last layers share keys and values",
    "shelf": "a connector that the reader writes",
    "my_plugin": "a processor that the reader writes",
    "'passages'": "an IO processor that the reader writes",
    "model 'DIR'": "a configuration that the reader has",
    "model 'HEAD'": "a draft that the reader has",
    "sql: there is no such file": "adapters that the reader has",
    "fr: there is no such file": "adapters that the reader has",
    "known: events, explain": "goes on from the line before",
    "so no launcher has started this process": "a command behind torchrun",
}
FILES = {
    "KEY": "0123456789" * 4,
    "librarian.txt": "You are a librarian.",
    "agent.json": json.dumps({"messages": [{"role": "system", "content": "You are an agent."}]}),
    "tuned.yaml": "max_num_seqs: 8\n",
}
"""Files that commands name, in a folder of the test's own."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems_of(words: list[str]) -> list[str]:
    """What the engine has against a command, a line each."""
    arguments = words[1:] if words and not words[0].startswith("-") else words
    try:
        return complaints({"shape": "llama-8b"}, arguments)
    except ConfigError as error:
        return str(error).splitlines()


def test_pages_show_commands() -> None:
    assert sum(map(len, SHOWN.values())) > 60 and "docs/usage.md" in SHOWN


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_shows_commands_that_the_engine_takes(page: str, folder: Path) -> None:
    for words in SHOWN[page]:
        if not any(word.startswith("--help") or word in SEVERAL for word in words):
            unexpected = [line for line in problems_of(words) if not any(piece in line for piece in EXPECTED)]
            assert not unexpected, words


OTHERS = [command for path in pages() for command in all_commands(path.read_text()) if command[0] != "serve"]
GROUPS = ("bench", "config", "kv", "models", "nodes", "plugins")
"""Commands whose next word is a command, too."""


@pytest.mark.parametrize("verb", sorted({command[0] for command in OTHERS}))
def test_pages_show_flags_that_a_command_has(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = {flag for field in schema().fields.values() for flag in field.flags}
    for words in (command for command in OTHERS if command[0] == verb):
        own = words[: 1 + (verb in GROUPS and len(words) > 1)]
        assert main([*own, "--help"]) == 0, own
        known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", capsys.readouterr().out)) | engine
        flags = [
            word.partition("=")[0].partition(".")[0] for word in words[len(own) :] if re.match("--?[a-zA-Z]", word)
        ]
        assert {flag for flag in flags if " " not in flag} <= known, words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("CORE_API_KEY=secret core serve A --port 1 | tee log", ["A", "--port", "1"]),
        ("core serve --x '{\"a\": 1}'   # why", ["--x", '{"a": 1}']),
        ("cd here && .venv/bin/core serve & echo", []),
    ],
)
def test_commands_are_found(line: str, words: list[str]) -> None:
    assert list(commands_of(f"```bash\n{line}\n```\n")) == [words]
