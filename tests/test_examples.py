"""The examples run as they are written."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from core import LLM, AsyncLLM, SamplingParams

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=120, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_offline(tmp_path: Path) -> None:
    lines = run("offline.py", tmp_path).splitlines()
    assert len(lines) == 3 and all("→" in line for line in lines)


def test_without_ray_the_ray_example_says_what_to_install(tmp_path: Path) -> None:
    hidden = f"import runpy, sys; sys.modules['ray'] = None; runpy.run_path({str(EXAMPLES / 'ray_serve.py')!r})"
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith('install it with: pip install "core-engine[all,ray]"')


@pytest.mark.slow
def test_drafts_change_no_token(tmp_path: Path) -> None:
    assert "equal tokens: True" in run("speculative.py", tmp_path)


@pytest.mark.slow
def test_an_answer_goes_on_when_the_engine_is_killed(tmp_path: Path) -> None:
    assert "equal answers: True" in run("kill_the_engine.py", tmp_path)


def test_a_plugin_in_a_file_is_used(tiny_llama: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = []
    for settings in (
        {},
        {
            "plugins": str(EXAMPLES / "file_plugin.py"),
            "speculative_config": {"method": "again", "num_speculative_tokens": 2},
        },
    ):
        with LLM(model=str(tiny_llama), max_model_len=128, **settings) as llm:
            outputs.append(llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids)
            drafted = llm.stats().spec_num_draft_tokens
    assert drafted > 0
    assert outputs[0] == outputs[1]


def test_the_small_server_answers_whole_in_lines_and_with_a_sentence(tiny_llama: Path) -> None:
    namespace = runpy.run_path(str(EXAMPLES / "small_server.py"))
    llm = AsyncLLM(str(tiny_llama), max_model_len=128, enforce_eager=True)
    with TestClient(namespace["create_app"](llm)) as client:
        body = {"prompt": "hello", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        whole = client.post("/generate", json=body)
        assert whole.status_code == 200 and whole.json()["text"]
        lines = client.post("/generate", json={**body, "stream": True}).text.splitlines()
        assert json.loads(lines[-1]) == whole.json() and len(lines) > 1
        for wrong, words in (
            ({**body, "prompt": "x" * 500}, "128"),
            ({**body, "temperature": -1}, "temperature"),
            ({**body, "nonsense": 1}, "nonsense"),
        ):
            answer = client.post("/generate", json=wrong)
            assert answer.status_code == 400 and words in answer.json()["error"], answer.text
        assert client.post("/generate", content=b"{").status_code == 400


def test_a_question_is_answered_from_the_nearest_paragraphs(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decoder with mean pooling is the encoder, so a paragraph is nearest to the same words."""
    (tmp_path / "sea.txt").write_text("The sea is deep.\n\nThe whale is large.\n\n")
    (tmp_path / "sky.txt").write_text("The sky is blue.\n\nAn eagle flies.\n")
    files = [str(tmp_path / name) for name in ("sea.txt", "sky.txt")]
    example = runpy.run_path(str(EXAMPLES / "retrieval.py"))
    passages = example["paragraphs"](files)
    assert passages == [
        "[sea.txt] The sea is deep.", "[sea.txt] The whale is large.", "[sky.txt] The sky is blue.", "[sky.txt] An eagle flies."
    ]  # fmt: skip
    with LLM(
        model=str(tiny_llama), runner="pooling", pooler_config={"pooling_type": "MEAN"}, max_model_len=256
    ) as encoder:
        found = example["nearest"](encoder, "[sky.txt] The sky is blue.", passages)
    assert found[0] == "[sky.txt] The sky is blue." and len(set(found)) == 3
    monkeypatch.setattr(
        sys, "argv", ["retrieval.py", "What is blue?", *files, "--encoder", str(tiny_llama), "--model", str(tiny_llama)]
    )
    example["main"]()
    assert capsys.readouterr().out.count("[sea.txt]") + capsys.readouterr().out.count("[sky.txt]") <= 3


TRAINED = """
import sys
import trl_grpo
done = trl_grpo.train(sys.argv[1], steps=3)
params = trl_grpo.SamplingParams(temperature=0, max_tokens=8, logprobs=0)
(output,) = done.llm.generate(["The sea is"], params, use_tqdm=False)
print(done.llm.weight_version, output.outputs[0].cumulative_logprob)
"""


@pytest.mark.slow
def test_the_engine_has_the_weights_of_a_trainers_last_step(tiny_llama: Path, tmp_path: Path) -> None:
    """With TRL, in an environment of its own: `make test-trl`."""
    pytest.importorskip("trl")
    command = [sys.executable, "-c", TRAINED, str(tiny_llama)]
    paths = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    version, likelihood = done.stdout.splitlines()[-1].split()
    with LLM(model=str(tiny_llama), max_model_len=128) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, logprobs=0)
        before = llm.generate(["The sea is"], params, use_tqdm=False)[0].outputs[0]
    assert version == "step-3" and float(likelihood) != before.cumulative_logprob, "the trainer has changed the weights"
