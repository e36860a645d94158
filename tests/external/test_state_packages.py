"""A backend of layers with a state that a stranger wrote, and a family of models that has them: installed by pip, checked by
the kit, run. Oracle: the model written down here, one token after the other."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core_kit.checkpoints import TINY, write_tokenizer

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "state_gated"
PROMPTS = [[1, *range(40, 75)], [1, 70, 71, 72], [1, *[90, 91] * 6], [5]]
NUM_TOKENS = 16
MAX_LINES = 200
HEADS, KEY, VALUE = 4, 12, 20
CONFIG = TINY | {
    "model_type": "sprig",
    "architectures": ["SprigForCausalLM"],
    "num_hidden_layers": 4,
    "mixers": ["linear", "full", "linear", "linear"],
    "linear_heads": HEADS,
    "linear_key": KEY,
    "linear_value": VALUE,
}


@pytest.fixture(scope="module")
def sprig(tmp_path_factory):
    """A checkpoint of random weights."""
    folder, random = tmp_path_factory.mktemp("sprig"), torch.Generator().manual_seed(5)
    hidden, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for index, mixer in enumerate(CONFIG["mixers"]):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, inner)
        if mixer == "full":
            widths = {"q": 64, "k": 32, "v": 32}
            shapes |= {f"{layer}.self_attn.{name}_proj.weight": (n, hidden) for name, n in widths.items()}
            shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, 64)
        else:
            widths = {"q": HEADS * KEY, "k": HEADS * KEY, "v": HEADS * VALUE, "gate": HEADS}
            shapes |= {f"{layer}.gated.{name}_proj.weight": (n, hidden) for name, n in widths.items()}
            shapes |= {f"{layer}.gated.out_proj.weight": (hidden, HEADS * VALUE), f"{layer}.gated.gate_bias": (HEADS,)}
    tensors = {name: torch.randn(shape, generator=random) * 0.2 for name, shape in shapes.items()}
    tensors = {name: 1 + tensor if "norm" in name else tensor for name, tensor in tensors.items()}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, str(folder / "model.safetensors"))
    write_tokenizer(folder)
    return folder


def rms(x, weight):
    return x / (x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]).sqrt() * weight


def rotated(x):
    """x [T, heads, 16], half-split pairs."""
    angles = torch.arange(len(x)).double()[:, None] * 10000.0 ** (-torch.arange(8).double() / 8)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attended(w, x):
    q, k, v = (x @ w[f"self_attn.{name}_proj.weight"].t() for name in "qkv")
    q, k, v = rotated(q.unflatten(1, (4, 16))), rotated(k.unflatten(1, (2, 16))), v.unflatten(1, (2, 16))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / 4
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    out = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return out.flatten(1) @ w["self_attn.o_proj.weight"].t()


def recurrence(q, k, v, gate):
    """The state after every token, as the formula says."""
    state, outs = torch.zeros(HEADS, KEY, VALUE, dtype=torch.float64), []
    for row in range(len(q)):
        decay = torch.sigmoid(gate[row]).view(HEADS, 1, 1)
        state = decay * state + torch.einsum("hk,hv->hkv", k[row].view(HEADS, KEY), v[row].view(HEADS, VALUE))
        outs.append(torch.einsum("hk,hkv->hv", q[row].view(HEADS, KEY), state).flatten() / KEY**0.5)
    return torch.stack(outs)


def gated(w, x):
    q, k, v, gate = (x @ w[f"gated.{name}_proj.weight"].t() for name in ("q", "k", "v", "gate"))
    return recurrence(q, k, v, gate + w["gated.gate_bias"]) @ w["gated.out_proj.weight"].t()


def greedy(path, ids):
    """The model, computed anew for every token in float64."""
    tensors = {name: tensor.double() for name, tensor in load_file(str(path / "model.safetensors")).items()}
    ids = list(ids)
    for _ in range(NUM_TOKENS):
        x = tensors["model.embed_tokens.weight"][ids]
        for index, mixer in enumerate(CONFIG["mixers"]):
            prefix = f"model.layers.{index}."
            w = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            x = x + (attended if mixer == "full" else gated)(w, rms(x, w["input_layernorm.weight"]))
            y = rms(x, w["post_attention_layernorm.weight"])
            y = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].t()) * (y @ w["mlp.up_proj.weight"].t())
            x = x + y @ w["mlp.down_proj.weight"].t()
        ids.append(int((rms(x[-1], tensors["model.norm.weight"]) @ tensors["lm_head.weight"].t()).argmax()))
    return ids[-NUM_TOKENS:]


def test_the_text_is_that_of_the_formula(sprig, generate):
    plain = {"model": str(sprig)}
    jobs = {
        "by itself": plain,
        "named": {**plain, "attention_backend": "full=torch_sdpa,state=gated_states"},
        "one token a step": {**plain, "max_num_batched_tokens": 1, "max_num_seqs": 1, "block_size": 1},
        "chunks of 3": {**plain, "max_num_batched_tokens": 3, "max_num_seqs": 2},
        "chunks of 7": {**plain, "max_num_batched_tokens": 7, "block_size": 2},
        "preempted": {**plain, "num_gpu_blocks_override": 40, "block_size": 4, "enable_prefix_caching": False},
        "8-bit KV": {**plain, "kv_cache_dtype": "int8_per_token_head", "attention_backend": None},
    }
    expected = [greedy(sprig, ids) for ids in PROMPTS]
    found = generate(jobs, PROMPTS)
    for job, (tokens, preempted, _) in found.items():
        if job != "8-bit KV":
            assert tokens == expected, job
        assert bool(preempted) == (job == "preempted"), job
    bytes_of_state = 4 * HEADS * KEY * VALUE
    for job, block_bytes in {"by itself": 16 * 256, "one token a step": 256, "8-bit KV": 16 * (64 + 16)}.items():
        count = -(-bytes_of_state // block_bytes)
        assert found[job][2] == [["full", 1, 0], *[["state", 1, count]] * 3], job


def test_chunks_and_single_tokens_are_one_recurrence(site, monkeypatch):
    """The backend alone, in every mixture of its two forms."""
    monkeypatch.syspath_prepend(str(site))
    from core_state_gated.backend import GatedStates
    from core_state_gated.layer import gated_linear

    from core_kit.checks.states import StateRun

    random = torch.Generator().manual_seed(3)
    spec = gated_linear(HEADS, KEY, VALUE)
    sequences = [torch.randn(length, spec.input_size, generator=random) for length in (70, 1, 17, 33)]
    for chunk in (0, 1, 2, 5, 16, 31):
        run = StateRun(GatedStates(), spec, sequences, random)
        for inputs, got in zip(sequences, run.all(chunk), strict=True):
            parts = inputs.double().split([HEADS * KEY, HEADS * KEY, HEADS * VALUE, HEADS], 1)
            expected = recurrence(*parts[:3], parts[3] + run.params["gate_bias"])
            torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


def test_who_serves_which_layers_is_told(sprig, tiny_lfm2, core):
    done = core("plugins", "explain", str(sprig), "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    stages = {stage["kind"]: stage for stage in json.loads(done.stdout)["selections"]}
    assert stages["attention.state"]["chosen"] == ["gated_states"]
    assert stages["attention.full"]["chosen"] != ["gated_states"]
    lost = {candidate["name"]: " ".join(candidate["reasons"]) for candidate in stages["attention.state"]["candidates"]}
    needed = "state_op: needs short_conv or mamba1 or mamba2 or gated_delta or kda"
    assert needed in lost["torch_sdpa"]
    assert needed in lost["cpu_paged"]
    refused = core("plugins", "explain", str(tiny_lfm2), "--attention-backend", "state=gated_states")
    assert refused.returncode == 2 and "state_op: needs gated_linear, got short_conv" in refused.stderr


@pytest.mark.slow
def test_they_pass_the_kit(sprig, core):
    for name, least, model in (("attention.gated_states", 14, []), ("model.sprig", 12, ["--model", str(sprig)])):
        done = core("plugins", "check", name, "--json", *model)
        findings = [finding for entry in json.loads(done.stdout) for finding in entry["findings"]]
        assert [finding for finding in findings if finding["verdict"] in ("failed", "warned")] == []
        assert sum(finding["verdict"] == "passed" for finding in findings) >= least, findings
        assert done.returncode == 0


def test_the_package_is_short():
    lines = sum(len(path.read_text().splitlines()) for path in HERE.rglob("*.py"))
    assert 20 < lines <= MAX_LINES
