"""Clients in Python, unmodified, against the real server with a small real model: it is held to tools and forms.

Each runs in the environment that `make test-clients` makes of `requirements.txt` here, and those of applications in that of
`requirements-apps.txt`.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.apis.test_real_answers import MODEL, THINKING
from tests.apis.test_real_server import Server, serving

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv" / "clients-python" / "bin" / "python"
APPS_PYTHON = ROOT / ".venv" / "clients-apps" / "bin" / "python"
CLIENT_SECONDS = 180
FORECAST = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 16, "pattern": "^[A-Z][a-z]*$"},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
NUM_ANSWERS = {"langchain": 12, "litellm": 12, "llama_index": 4, "openai_agents": 8, "pydantic_ai": 8}
"""By client: how many calls and answers in a form it reports."""
NUM_APPLICATIONS = {"autogen": 5, "dify": 2, "haystack": 4, "huggingface": 3}
"""The same by application of docs/recipes/apps."""

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("clients")
    template = folder / "template.jinja"
    template.write_text(THINKING)
    with serving(folder / "log", "--chat-template", str(template), "--served-model-name", MODEL) as running:
        yield running


@pytest.mark.parametrize("client", NUM_ANSWERS)
def test_a_client_calls_and_answers_in_a_form(server: Server, client: str, tmp_path: Path) -> None:
    check_answers(server, PYTHON, f"with_{client}.py", NUM_ANSWERS[client], tmp_path)


@pytest.mark.parametrize("application", NUM_APPLICATIONS)
def test_an_application_gets_calls_and_answers_in_a_form(server: Server, application: str, tmp_path: Path) -> None:
    check_answers(server, APPS_PYTHON, f"app_{application}.py", NUM_APPLICATIONS[application], tmp_path)


def check_answers(server: Server, python: Path, program: str, number: int, tmp_path: Path) -> None:
    """Run a program of `python/`, and compare what it reports with the schema that it asked for."""
    assert python.exists(), f"{python} is missing; run `make test-clients`"
    script = HERE / "python" / program
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
    ended = subprocess.run(
        [str(python), str(script), server.base, MODEL],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    report = json.loads(ended.stdout.splitlines()[-1])
    answers = {**{f"called: {k}": v for k, v in report["called"].items()}, **report["formed"]}
    assert len(answers) == number
    for answer in answers.values():
        jsonschema.validate(answer, FORECAST)


@pytest.mark.parametrize("library", ["gradio", "streamlit"])
def test_a_page_asks_twice_and_shows_what_the_server_says(server: Server, library: str, tmp_path: Path) -> None:
    """The pages of examples/, each run by its library."""
    assert PYTHON.exists(), f"{PYTHON} is missing; run `make test-clients`"
    words = [HERE / "python" / f"page_{library}.py", ROOT / "examples" / f"{library}_page.py", server.base]
    ended = subprocess.run(
        [str(PYTHON), *map(str, words)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    answers = json.loads(ended.stdout.splitlines()[-1])
    assert len(answers) == 2 and all(answers)
