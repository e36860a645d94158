"""The minimal core without any other distribution: nothing else can be imported or found, and its commands work.

The other parts are installed here, so they are hidden: a hook in every process refuses their modules, and the metadata of the
distribution lists the entry points of the minimal core alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.version import __version__

PARTS = ("api", "args", "commands", "plugin", "processes", "version")
"""Modules and packages of `core` that these commands may import; scheduler, KV manager and loop are not needed for them."""
OTHERS = ("torch", "numpy", "transformers", "tokenizers", "fastapi", "uvicorn", "starlette", "rich", "core_plugins")

BLOCKER = """
import sys

PARTS, OTHERS = {parts!r}, {others!r}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        first, *rest = name.split(".")
        if first in OTHERS or name == "core_runtime.specs.vllm_config" or (first == "core" and rest and rest[0] not in PARTS):
            raise ModuleNotFoundError(f"{{name}} is not of the minimal core", name=name)


sys.meta_path.insert(0, Blocker())
"""
ENTRIES = """
[core.commands]
plugins.list = core.commands.rows:PLUGINS_LIST
config.schema = core.commands.rows:CONFIG_SCHEMA
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """alone(*words) -> the finished command, in processes that have the minimal core alone."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "sitecustomize.py").write_text(BLOCKER.format(parts=PARTS, others=OTHERS))
    info = folder / "core_engine-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: core-engine\nVersion: {__version__}\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    root = Path(__file__).parents[2]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(folder), str(root)])
        program = "import sys, core_engine; sys.argv[0] = 'core'; sys.exit(core_engine.main())"
        return subprocess.run(
            [sys.executable, "-P", "-c", program, *words],
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_a_command_of_another_distribution_is_missed_by_its_name(alone: Any) -> None:
    done = alone("bench", "--help")
    assert done.returncode == 2
    sentence = r"core: core bench: this command comes with (\S+), and it is not installed here\."
    assert re.fullmatch(sentence + r" Install it with `pip install \1`\.\n", done.stderr)
    two_words = alone("plugins", "show", "cpu")
    assert two_words.returncode == 2 and two_words.stderr.startswith(
        "core: core plugins show: this command comes with "
    )


def test_help_and_version(alone: Any) -> None:
    version = alone("--version")
    assert (version.returncode, version.stdout) == (0, f"core {__version__}\n")
    done = alone("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  plugins list " in done.stdout and "  config schema " in done.stdout
    assert "serve [MODEL]" not in done.stdout
    unknown = alone("srve")
    assert unknown.returncode == 2 and "Did you mean 'serve'?" in unknown.stderr
    group = alone("plugins", "--help")
    assert group.returncode == 0 and "  plugins list" in group.stdout and "plugins show" not in group.stdout


def test_plugins_are_listed(alone: Any) -> None:
    done = alone("plugins", "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [row for row in json.loads(done.stdout) if row["distribution"] == "core-engine"]
    assert {(row["kind"], row["name"], row["status"]) for row in rows} == {
        ("command", "plugins.list", "available"),
        ("command", "config.schema", "available"),
    }


def test_arguments_are_described(alone: Any) -> None:
    done = alone("config", "schema")
    assert (done.returncode, done.stderr) == (0, "")
    schema = json.loads(done.stdout)
    assert schema["properties"]["max_num_seqs"]["description"]
    assert schema["properties"]["speculative_config"]
