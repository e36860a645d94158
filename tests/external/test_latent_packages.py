"""A backend of latent layers that a stranger wrote: installed by pip, checked by the kit, and DeepSeek models run on it.
Oracle: transformers on the same checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "latent_pages"
PROMPTS = [[1, *range(40, 75)], [1, 70, 71, 72], [1, *[90, 91] * 6]]
MAX_LINES = 200


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepseek")
    return {name: save_checkpoint(folder / name, f"deepseek_{name}") for name in ("v2", "v3")}


@pytest.fixture(scope="module")
def greedy(models):
    """What transformers writes."""
    found = {}
    for name, path in models.items():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        model.generation_config.eos_token_id = None
        found[name] = [
            model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :] for ids in PROMPTS
        ]
    return {name: [ids.tolist() for ids in rows] for name, rows in found.items()}


def test_the_text_is_that_of_transformers(models, greedy, generate):
    plain = {"attention_backend": "latent_pages"}
    jobs = {
        "v2": {"model": str(models["v2"]), **plain},
        "v3": {"model": str(models["v3"]), "attention_backend": "latent=latent_pages"},
        "v3 in short pages and chunks": {
            "model": str(models["v3"]),
            "block_size": 2,
            "max_num_batched_tokens": 5,
            **plain,
        },
        "v3 preempted": {"model": str(models["v3"]), "num_gpu_blocks_override": 7, **plain},
    }
    for job, (tokens, preempted, _) in generate(jobs, PROMPTS).items():
        assert tokens == greedy[job[:2]], job
        assert bool(preempted) == ("preempted" in job)


def test_it_is_told_and_refuses_other_layers(models, tiny_llama, core):
    done = core("plugins", "explain", str(models["v3"]), "--json", "--attention-backend", "latent_pages")
    assert done.returncode == 0, done.stderr
    stages = {stage["kind"]: stage["chosen"] for stage in json.loads(done.stdout)["selections"]}
    assert stages["attention.latent"] == ["latent_pages"]
    refused = core("plugins", "explain", str(tiny_llama), "--attention-backend", "latent_pages")
    assert refused.returncode == 2
    assert "layer_kind: needs latent, got full" in refused.stderr


@pytest.mark.slow
def test_it_passes_the_kit(core):
    done = core("plugins", "check", "attention.latent_pages", "--json")
    findings = [finding for entry in json.loads(done.stdout) for finding in entry["findings"]]
    assert [finding for finding in findings if finding["verdict"] in ("failed", "warned")] == []
    passed = {finding["check"] for finding in findings if finding["verdict"] == "passed"}
    assert len(passed) >= 13 and any("claims to support" in check for check in passed)
    assert done.returncode == 0


def test_it_is_short():
    lines = sum(len(path.read_text().splitlines()) for path in HERE.rglob("*.py"))
    assert 20 < lines <= MAX_LINES
