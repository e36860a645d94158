"""What an engine leaves behind when it dies of a step: shapes and lengths, no id, no text; nothing when it ends by itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, CoreError
from core_observers.engine.crash_dump import MOST_FILES

DIES = """
import os, signal, sys
from core import LLM, SamplingParams
from core_runtime.executor.worker import Worker

model, directory = sys.argv[1:]
llm = LLM(model, max_model_len=64, num_gpu_blocks_override=32, crash_dump=directory)
begin = Worker.execute
steps = []

def execute(worker, plan):
    steps.append(plan)
    if len(steps) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return begin(worker, plan)

Worker.execute = execute
prompts = [{"prompt_token_ids": [201, 202, 203, 204]}, "a secret text"]
llm.generate(prompts, SamplingParams(max_tokens=9, ignore_eos=True), use_tqdm=False)
"""


def test_a_killed_engine_leaves_its_step(tiny_llama: Path, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    ended = subprocess.run(
        [sys.executable, "-c", DIES, str(tiny_llama), str(directory)], capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-800:]
    (path,) = directory.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    told = json.loads(text)
    newest = told["steps"][-1]
    assert newest["step"] == 3 and newest["decodes"] == 2 and newest["tokens"] == 2
    assert newest["sequences"]["new_tokens"] == [1, 1]
    assert 5 in newest["sequences"]["computed_tokens"], "four tokens of the prompt, and one of the answer"
    assert told["scheduler"]["running"] == 2 and told["cache"]["block_size"] == 16
    for secret in ("secret", "201", "token_ids", "request_id"):
        assert secret not in text


def test_an_engine_that_ends_by_itself_leaves_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    with LLM(str(tiny_llama), max_model_len=64, num_gpu_blocks_override=32, crash_dump=str(tmp_path / "d")) as llm:
        (path,) = (tmp_path / "d").iterdir()
        assert json.loads(path.read_text())["steps"] == []
        llm.generate("a", SamplingParams(max_tokens=3), use_tqdm=False)
        assert json.loads(path.read_text())["steps"] == [], "no step is under way"
    assert list((tmp_path / "d").iterdir()) == []


def test_a_directory_of_others_and_a_full_one(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises((ConfigError, CoreError), match=r"--crash-dump .*: others may enter it"):
        LLM(str(tiny_llama), max_model_len=64, crash_dump=str(shared))
    os.chmod(shared, 0o700)
    for number in range(MOST_FILES):
        (shared / f"engine-{number}.json").write_text("{}")
    with LLM(str(tiny_llama), max_model_len=64, crash_dump=str(shared)):
        assert len(list(shared.iterdir())) == MOST_FILES
    assert "so this engine writes none" in caplog.text
