"""docs/troubleshooting.md is made of its table, and each of its messages is what a user sees."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.api.errors import ConfigError, UserError
from core.commands.main import main
from core.plugin.registry import PluginRegistry
from core_config.arguments.parser import Parser
from core_config.resolve import resolve
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.docs import damages
from tests.docs.errors import Error, areas, document

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
ERRORS = [row for area in areas() for row in area.error]
LEAST = 80
LONG = 300


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), (
        "write it: python -m tests.docs.errors > docs/troubleshooting.md"
    )


def test_there_are_enough_rows_each_with_a_page() -> None:
    assert len(ERRORS) >= LEAST
    for row in ERRORS:
        assert (PAGE.parent / row.page).is_file(), row.page
        assert [bool(row.arguments), bool(row.damage or row.command), bool(row.request)].count(True) == 1, row.words


def test_named_arguments_exist() -> None:
    """Every argument that a row advises is one that is served."""
    flags = {flag for row in ERRORS for flag in re.findall(r"`(--[a-z-]+)", row.do)} - {"--help", "--json", "--gpus"}
    text = (PAGE.parent / "arguments.md").read_text(encoding="utf-8")
    assert [flag for flag in sorted(flags) if f"`{flag}" not in text] == []


@pytest.fixture(scope="module")
def registry() -> PluginRegistry:
    return PluginRegistry()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(ServerConfig(uvicorn_log_level="critical")) as running:
        yield running


def resolved(arguments: str, model: Path, registry: PluginRegistry) -> list[str]:
    """What the start says of arguments: problems, else warnings."""
    parsed = Parser().parse([str(model) if word == "MODEL" else word for word in shlex.split(arguments)])
    try:
        done = resolve(parsed.values, context="serve", registry=registry, environ={}, problems=parsed.problems)
    except ConfigError as error:
        return list(error.problems)
    except UserError as error:
        return [str(error)]
    return list(done.warnings)


def of(kind: str) -> list[Error]:
    """Rows that are provoked in one way. A damaged checkpoint may need a whole command."""
    return [row for row in ERRORS if getattr(row, kind) and not (kind == "damage" and row.command)]


def damaged(row: Error, model: Path, folder: Path) -> Path:
    """A copy of the checkpoint, with what is wrong."""
    copy = folder / "model"
    shutil.copytree(model, copy)
    if row.damage:
        getattr(damages, row.damage)(copy)
    return copy


@pytest.mark.parametrize("row", of("arguments"), ids=lambda row: row.words)
def test_what_the_start_says(row: Error, tiny_llama: Path, registry: PluginRegistry) -> None:
    said = resolved(row.arguments, tiny_llama, registry)
    assert any(row.is_in(sentence) for sentence in said), said


@pytest.mark.parametrize("row", of("damage"), ids=lambda row: row.damage)
def test_what_a_damaged_checkpoint_says(row: Error, tiny_llama: Path, registry: PluginRegistry, tmp_path: Path) -> None:
    said = resolved("--model MODEL", damaged(row, tiny_llama, tmp_path), registry)
    assert any(row.is_in(sentence.replace(str(tmp_path), "")) for sentence in said), said


@pytest.mark.parametrize("row", of("request"), ids=lambda row: row.words)
def test_what_the_server_says(row: Error, server: RunningServer) -> None:
    method, path = row.request.split()
    headers = {"content-type": "application/json", **json.loads(row.headers or "{}")}
    body = (row.text or row.json).replace("LONG", "x" * LONG)
    answer = server.http.request(method, path, content=body or None, headers=headers)
    assert answer.status_code >= 400
    assert row.is_in(answer.json()["error"]["message"]), answer.text


@pytest.mark.parametrize("row", of("command"), ids=lambda row: row.words)
def test_what_a_command_says(row: Error, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(damaged(row, tiny_llama, tmp_path))
    assert main([model if word == "MODEL" else word for word in row.command.split()]) != 0
    said = capsys.readouterr().err
    assert row.is_in(said), said
