"""`core serve` with two real models that do not fit together: tokens of each alone, deaths, the end."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import httpx
import openai
import psutil
import pytest

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter
from tests.apis.serving_processes import ROOT
from tests.media.checkpoints import file_of, picture, save_llava

pytestmark = pytest.mark.slow

SIZES = {"max_model_len": 128, "kv_cache_memory_bytes": 32 << 20, "max_num_batched_tokens": 64}
WORDS = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))]
BUDGET = ("--model-budget", "48MiB", "--model-turn", "0.1")
"""Room for one of the models, whose KV caches are most of what they take."""
PROMPT = [7, 100, 3, 55, 9, 31]


@contextlib.contextmanager
def serving(tmp_path, *words):
    command = [sys.executable, "-m", "core", "serve", *words, "--port", "0", "--platform-config.threads", "1"]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r" at (http://\S+) ", line)
            if found:
                break
        else:
            pytest.fail((tmp_path / "log").read_text())
        yield process, found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        log.close()


def tokens(url, model, seed=5):
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0.8, "seed": seed, "logprobs": 1}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    while answer.status_code == 503:  # a model whose server has died is started again after the seconds that it says
        time.sleep(int(answer.headers["retry-after"]))
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["logprobs"]["token_logprobs"]


def alone(model, seed=5):
    llm = LLM(str(model), seed=0, platform_config={"threads": 1}, **SIZES)
    wanted = SamplingParams(max_tokens=16, temperature=0.8, seed=seed, logprobs=1)
    (output,) = llm.generate([{"prompt_token_ids": PROMPT}], wanted, use_tqdm=False)
    return [next(iter(step.values())).logprob for step in output.outputs[0].logprobs]


def states(url):
    return {each["id"]: each["state"] for each in httpx.get(f"{url}/v1/models").json()["data"]}


def servers_of(process):
    found = []
    for each in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # also of one that has ended and was not yet waited for
            if "core_commands.several.member" in each.cmdline():
                found.append(each)
    return found


def test_two_models_that_do_not_fit_together(tiny_llama, tiny_gemma3, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(f"- model: {tiny_llama}\n  served_model_name: l\n- model: {tiny_gemma3}\n  served_model_name: g\n")
    with serving(tmp_path, "--models", str(file), *WORDS, *BUDGET) as (process, url):
        assert sorted(states(url).values()) == ["asleep", "awake"]
        wanted = {"l": alone(tiny_llama), "g": alone(tiny_gemma3)}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            names = ["lg"[number % 2] for number in range(24)]
            assert list(pool.map(lambda name: tokens(url, name), names)) == [wanted[name] for name in names]
        client = openai.OpenAI(base_url=f"{url}/models/g/v1", api_key="none", max_retries=0)
        streamed = client.completions.create(model="g", prompt=PROMPT, max_tokens=4, stream=True)
        assert list(streamed)[-1].choices[0].finish_reason == "length"
        first = servers_of(process)
        first[0].kill()
        while len(servers_of(process)) == 2:
            time.sleep(0.01)
        assert {name: tokens(url, name) for name in "lg"} == wanted, "a server that died is started again"
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        lasting = servers_of(process)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)
        assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in lasting)


def test_a_key_uses_its_limits_once_for_all_models(tiny_llama, tiny_gemma3, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(
        f"- {{model: {tiny_llama}, served_model_name: l, batch_directory: {tmp_path}/l}}\n"
        f"- {{model: {tiny_gemma3}, served_model_name: g, batch_directory: {tmp_path}/g}}\n"
    )
    limits = ("--max-num-reqs-per-key", "2", "--batch-directory-size", "1MiB", "--scheduling-policy", "fair")
    sizes = [word.replace("128", "512") for word in WORDS]
    words = ["--models", str(file), *sizes, "--model-budget", "200MiB", *limits]
    keys = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]
    with serving(tmp_path, *words, "--api-key", "one", "two") as (process, url):

        def ask(model, key=0, **fields):
            body = {"model": model, "prompt": PROMPT, "max_tokens": 4, **fields}
            return httpx.post(f"{url}/v1/completions", json=body, headers=keys[key], timeout=60)

        refused = []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            long = [pool.submit(ask, "l", n=16, max_tokens=500, ignore_eos=True) for _ in range(2)]
            while not all(one.done() for one in long):
                refused += [answer] if (answer := ask("g")).status_code != 200 else []
                assert ask("g", key=1).status_code == 200
            assert [one.result().status_code for one in long].count(200) >= 1
        assert {answer.status_code for answer in refused} == {429}
        assert int(refused[0].headers["retry-after"]) >= 1
        assert "at most 2 may be (--max-num-reqs-per-key)" in refused[0].json()["error"]["message"]
        assert ask("g").status_code == 200

        def upload(model, num_bytes):
            files = {"file": ("in.jsonl", b"x" * num_bytes)}
            data = {"purpose": "batch"}
            return httpx.post(f"{url}/v1/files?model={model}", data=data, files=files, headers=keys[0], timeout=60)

        assert upload("l", 700_000).status_code == 200
        assert upload("g", 700_000).status_code == 413
        for server in servers_of(process):
            server.kill()
        while servers_of(process):
            time.sleep(0.01)
        assert {name: len(tokens_of_key(url, name, keys[0])) for name in "lg"} == {"l": 16, "g": 16}


def tokens_of_key(url, model, headers):
    """Ask until a model whose server has died is started again."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "logprobs": 1}
    for _ in range(60):
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120)
        if answer.status_code == 200:
            return answer.json()["choices"][0]["logprobs"]["tokens"]
        assert answer.status_code == 503, answer.text
        time.sleep(int(answer.headers["retry-after"]))
    pytest.fail("the model was not started again")


def test_adapters_and_pictures_of_models_that_take_turns(tiny_llama, tmp_path):
    """A model with an adapter and one that sees: each answer is that of the model alone, receipts included."""
    sql = write_adapter(tmp_path / "sql", shapes_of(str(tiny_llama)), 4, 1)
    llava = save_llava(tmp_path / "llava")
    file = tmp_path / "models.yaml"
    rows = [
        {
            "model": str(tiny_llama),
            "served_model_name": "l",
            "enable_lora": True,
            "lora_modules": [{"name": "sql", "path": str(sql)}],
        },
        {"model": str(llava), "served_model_name": "v", "max_model_len": 256, "max_num_batched_tokens": 256},
    ]
    file.write_text(json.dumps(rows))
    given = {"temperature": 0.8, "max_tokens": 8, "seed": 4, "ignore_eos": True}
    text = {**given, "prompt": PROMPT, "return_token_ids": True, "receipt": True}

    def shown(seed):
        url = "data:image/png;base64," + base64.b64encode(file_of(picture(seed))).decode()
        parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
        return {**given, "model": "v", "messages": [{"role": "user", "content": parts}], "return_token_ids": True}

    # Room for the one that sees, most of which are rows of pictures, and not for the other one beside it.
    budget = ("--model-budget", "1075MiB", "--model-turn", "0.1")
    with serving(tmp_path, "--models", str(file), "--receipts", "ask", *WORDS, *budget) as (_, url):

        def asked(body):
            path = "chat/completions" if "messages" in body else "completions"
            answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            adapter = found["receipt"]["receipt"]["adapter"] if "receipt" in body else ""
            return tuple(found["choices"][0]["token_ids"]), adapter != ""

        bodies = [{**text, "model": "l"}, {**text, "model": "sql"}, shown(1), shown(2)]
        alone = [asked(body) for body in bodies]
        assert [uses for _, uses in alone] == [False, True, False, False]
        assert len({tokens for tokens, _ in alone}) == 4
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(asked, bodies * 5)) == alone * 5
        assert states(url)["sql"] == states(url)["l"]
    with LLM(str(tiny_llama), seed=0, enable_lora=True, platform_config={"threads": 1}, **SIZES) as llm:
        wanted = SamplingParams(max_tokens=8, temperature=0.8, seed=4, ignore_eos=True)
        adapter = LoRARequest("sql", lora_path=str(sql))
        [output] = llm.generate([{"prompt_token_ids": PROMPT}], wanted, use_tqdm=False, lora_request=adapter)
    assert tuple(output.outputs[0].token_ids) == alone[1][0]


@pytest.mark.slow
def test_models_end_with_a_server_that_is_killed(tiny_llama, tmp_path):
    with serving(tmp_path, str(tiny_llama), "--model-budget", "1GiB", *WORDS) as (process, _):
        (model,) = servers_of(process)
        process.kill()
        process.wait()
        gone, alive = psutil.wait_procs([model], 30)
        assert (len(gone), alive) == (1, [])
        process.returncode = 0
