"""An executor that a stranger wrote: installed by pip, chosen by its name, and served through `LLM` and the OpenAI API.

Oracle: its own rule, the prompt again with every token raised by a number.
"""

import json

import pytest

pytestmark = pytest.mark.slow

PROMPTS = [[1, *range(40, 61)], [1, 70, 71, 72], [1, 90]]


def repeated(prompt, count, shift=0):
    return [prompt[place % len(prompt)] + shift for place in range(count)]


def test_it_answers_through_llm(tiny_llama, generate):
    plain = {"model": str(tiny_llama), "executor": "parrot"}
    jobs = {
        "plain": plain,
        "in chunks": {**plain, "max_num_batched_tokens": 5, "max_num_seqs": 4},
        "preempted": {**plain, "block_size": 4, "max_model_len": 40, "num_gpu_blocks_override": 11},
        "shifted": {**plain, "executor_config": {"shift": 3}},
    }
    for job, (tokens, preempted, _) in generate(jobs, PROMPTS).items():
        assert tokens == [repeated(prompt, 16, 3 * (job == "shifted")) for prompt in PROMPTS], job
        assert bool(preempted) == (job == "preempted"), job


def test_it_answers_the_openai_api_from_an_engine_process(tmp_path, tiny_llama, core):
    asked = {"model": "tiny", "prompt": [1, 40, 41, 42], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
    bodies = [asked, {**asked, "stream": False, "logprobs": 1}]
    lines = []
    for number, body in enumerate(bodies):
        lines.append({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body})
    batch, answers = tmp_path / "batch.jsonl", tmp_path / "answers.jsonl"
    batch.write_text("\n".join(map(json.dumps, lines)))
    words = ["--model", str(tiny_llama), "--served-model-name", "tiny", "--executor", "parrot", "--max-model-len", "64"]
    done = core("run-batch", "-i", str(batch), "-o", str(answers), *words)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    served, refused = map(json.loads, answers.read_text().splitlines())
    assert served["response"]["body"]["choices"][0]["token_ids"] == [1, 40, 41, 42], served
    assert "neither grammars nor log-probabilities" in json.dumps(refused)


@pytest.mark.parametrize("named_in", ["the words", "a file"])
def test_no_process_imports_torch_for_it(tmp_path, tiny_llama, core, named_in):
    batch, answers, settings = tmp_path / "batch.jsonl", tmp_path / "answers.jsonl", tmp_path / "settings.yaml"
    asked = {"model": "tiny", "prompt": [1, 40, 41, 42], "max_tokens": 4}
    batch.write_text(json.dumps({"custom_id": "0", "method": "POST", "url": "/v1/completions", "body": asked}))
    settings.write_text("executor: parrot\n")
    words = ["--model", str(tiny_llama), "--served-model-name", "tiny", "--max-model-len", "64"]
    words += ["--executor", "parrot"] if named_in == "the words" else ["--config", str(settings)]
    # Python then writes the name of each module that it imports, in the processes of the command too.
    done = core("run-batch", "-i", str(batch), "-o", str(answers), *words, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (done.stdout + done.stderr).splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if "import time:" in line}
    assert "core_parrot.executor" in imported
    assert "torch" not in imported


def test_it_keeps_its_promises(core):
    done = core("plugins", "check", "executor.parrot")
    assert done.returncode == 0, done.stdout + done.stderr


def test_installing_it_changes_no_choice(tiny_llama, core):
    told = json.loads(core("plugins", "explain", str(tiny_llama), "--json").stdout)
    (stage,) = [stage for stage in told["selections"] if stage["kind"] == "executor"]
    assert stage["chosen"] == ["torch"]
    others = {candidate["name"]: candidate for candidate in stage["candidates"]}
    assert others["parrot"]["verdict"] == "installed, not chosen"
    assert others["parrot"]["reasons"] == ["name it with --executor parrot"]
