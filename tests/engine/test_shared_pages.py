"""Engines that share a directory (`--kv-connectors file`, `shm`) continue each other's prompts, also after a kill between
turns. Oracle for the tokens: an engine without it."""

import json
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from core import LLM, SamplingParams

settings, prompts, kill = json.loads(sys.argv[1])
sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
room = {"max_model_len": 128, "num_gpu_blocks_override": 10, "max_num_seqs": 1, "dtype": "float32"}
with LLM(use_tqdm_on_load=False, **room, **settings) as llm:
    answers = []
    for prompt in prompts:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        answers.append([output.outputs[0].token_ids, output.num_cached_tokens])
    print(json.dumps(answers), flush=True)
    if kill:
        ((_, own),) = settings["kv_connectors_config"].items()
        place = Path(own["directory"])
        deadline = time.monotonic() + 60
        while len(list(place.glob("*/*.kv"))) < kill and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
"""
FIRST, *OTHERS = ([1, *(3 + stride * index % 250 for index in range(96))] for stride in (1, 3, 7))


def run(settings, prompts, kill=0):
    """The answers of an engine in a process of its own: token ids, and the number of cached tokens."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([settings, prompts, kill])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected(tiny_llama):
    """The answer of an engine that shares nothing."""
    ((tokens, cached),) = run({"model": str(tiny_llama)}, [FIRST])
    assert cached == 0
    return tokens


LONGER = [pytest.param(how, marks=pytest.mark.slow) for how in ("file", "file with a key")]


@pytest.mark.parametrize("how", ["shm", *LONGER])
def test_another_engine_continues_after_a_kill(tiny_llama, tmp_path, expected, how):
    name, *keyed = how.split(" with a ")
    own = {"directory": str(tmp_path / "pages")}
    if keyed:
        own["key_file"] = str(tmp_path / "key")
        (tmp_path / "key").write_text("0123456789abcdef" * 4)
        (tmp_path / "key").chmod(0o600)
    shared = {"model": str(tiny_llama), "kv_connectors": [name], "kv_connectors_config": {name: own}}
    first, *_ = run(shared, [FIRST, *OTHERS], kill=9)  # of 18 full blocks the pool holds 9
    assert first == [expected, 0]
    assert run(shared, [FIRST]) == [[expected, 96]]
