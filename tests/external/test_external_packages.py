"""A separate package with one plugin of each kind is installed with pip, listed, and used to generate text; a broken
one becomes rows and sentences. Oracle for the text: transformers on the same dequantized weights."""

import json
import shutil

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_llama):
    """The tiny llama as a numpy archive."""
    import numpy as np
    from safetensors.numpy import load_file

    directory = tmp_path_factory.mktemp("npz_model")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_llama / name, directory / name)
    np.savez(directory / "weights.npz", **load_file(tiny_llama / "model.safetensors"))
    return directory


def listed(core, **environment):
    done = core("plugins", "list", "--json", **environment)
    assert done.returncode == 0, done.stderr
    return {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}


def test_every_kind_is_listed_with_its_package(core):
    rows = listed(core)
    for kind, name in [
        ("loader", "example_npz"),
        ("quantization", "example_int8"),
        ("attention", "example_naive"),
        ("platform", "example_cpu"),
        ("speculative", "example_repeat"),
    ]:
        row = rows[kind, name]
        assert (row["distribution"], row["version"]) == ("core-example-plugins", "1.2.3")
        assert (row["status"], row["reason"], row["contract"]) == ("available", "", 1)


def test_broken_plugins_are_rows_with_a_sentence(core):
    rows = listed(core)
    for name, words in {
        "broken_import": ["RuntimeError", "a vendor library is missing"],
        "broken_contract": ["CONTRACT is 99", "upgrade the engine"],
        "broken_exit": ["SystemExit", "goodbye"],
    }.items():
        row = rows["attention", name]
        assert row["status"] == "broken"
        assert all(word in row["reason"] for word in [*words, "core-broken-plugin 0.0.1"])
    assert rows["platform", "broken_probe"]["status"] == "unavailable"
    assert "signal 6" in rows["platform", "broken_probe"]["reason"]


def test_show_keeps_the_traceback(core):
    done = core("plugins", "show", "attention.broken_import")
    assert "Traceback" in done.stdout
    assert 'raise RuntimeError("a vendor library is missing")' in done.stdout


def test_broken_plugins_harm_only_those_who_choose_them(core, checkpoint):
    assert core("plugins", "explain", str(checkpoint)).returncode == 0
    chosen = core("plugins", "explain", str(checkpoint), "--attention-backend", "broken_import")
    assert chosen.returncode in (1, 2)
    assert "a vendor library is missing" in chosen.stderr
    assert "Traceback" not in chosen.stderr
    platform = core("plugins", "explain", str(checkpoint), "--device", "broken_probe")
    assert platform.returncode == 2
    assert "signal 6" in platform.stderr


def test_explain_names_the_choices_and_the_losers(core, checkpoint):
    done = core("plugins", "explain", str(checkpoint), "--json", "--device=example_cpu:1", "-q", "example_rowwise")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    stages = {stage["kind"]: stage for stage in told["selections"]}
    assert told["device"] == "example_cpu:1"
    assert stages["loader"]["chosen"] == ["example_npz"]
    assert stages["quantization"]["chosen"] == ["example_int8"]
    assert stages["kernels"]["chosen"] == []
    lost = {candidate["name"]: candidate for candidate in stages["loader"]["candidates"]}
    assert lost["gguf"]["verdict"] == "refused" and lost["gguf"]["reasons"]
    assert told["arguments"]["block_size"] == {"value": 8, "origin": "platform example_cpu", "reason": "an example"}


def test_a_users_block_removes_a_package(core, checkpoint):
    rows = listed(core, CORE_PLUGINS="no:example_npz")
    assert rows["loader", "example_npz"]["status"] == "blocked"
    done = core("plugins", "explain", str(checkpoint), "--plugins", "no:example_npz,no:new_loader")
    assert done.returncode == 2
    assert "blocked" in done.stderr


ANOTHER_ENVIRONMENT = """
import asyncio, os, sys
from core.api.errors import CoreError
from core_config.resolve import resolve
from core_supervision.owned_engine import start_engine

drafts = {"method": "example_repeat", "num_speculative_tokens": 2}
given = {"model": sys.argv[1], "speculative_config": drafts, "kv_cache_memory_bytes": 1 << 22, "max_model_len": 64}
config = resolve(given, context="llm", environ={}).engine
os.environ["PYTHONPATH"] = sys.argv[2] + os.pathsep + os.environ["PYTHONPATH"]
try:
    asyncio.run(start_engine(config))
except CoreError as error:
    print(error)
"""


def test_an_engine_process_with_another_version_refuses(python, checkpoint, site, tmp_path):
    (info,) = site.glob("core_example_plugins-*.dist-info")
    shutil.copytree(info, tmp_path / info.name.replace("1.2.3", "1.3.0"))
    metadata = next(tmp_path.glob("*.dist-info")) / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.2.3", "Version: 1.3.0"))
    done = python("-c", ANOTHER_ENVIRONMENT, str(checkpoint), str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "chosen from core-example-plugins 1.2.3, but here 1.3.0 is installed" in done.stdout
    assert "install the same version in every process's environment" in done.stdout


GENERATE = """
import json, sys
from core import LLM, SamplingParams
llm = LLM(
    model=sys.argv[1], device="example_cpu", quantization="example_int8", attention_backend="example_naive",
    speculative_config={"method": "example_repeat", "num_speculative_tokens": 2}, use_tqdm_on_load=False,
)
params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
outputs = llm.generate([{"prompt_token_ids": ids} for ids in json.loads(sys.argv[2])], params, use_tqdm=False)
print(json.dumps([[o.outputs[0].token_ids, o.outputs[0].text] for o in outputs]))
"""


def reference_tokens(tiny_llama, prompts):
    """Greedy tokens of transformers, linear layers rounded to one scale a row."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                scale = module.weight.abs().amax(1, keepdim=True) / 127
                module.weight.copy_(torch.round(module.weight / scale) * scale)
    found = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(16):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        found.append(ids[len(prompt) :])
    return found


def test_text_is_generated_with_all_five(python, checkpoint, tiny_llama):
    prompts = [[1, *range(40, 60)], [1, 70, 71, 72], [1, 90]]
    done = python("-c", GENERATE, str(checkpoint), json.dumps(prompts))
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert all(text for _, text in answers)
    expected = reference_tokens(tiny_llama, prompts)
    agreeing = sum(ids == wanted for (ids, _), wanted in zip(answers, expected, strict=True))
    assert agreeing == len(prompts), (answers, expected)
