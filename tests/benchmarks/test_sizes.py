"""Models of real sizes: random blocks with sane scales, files that load, runs that add up."""

import json
import math
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.sizes import files
from benchmarks.sizes.blocks import FILLS, random_bfloat16, random_blocks
from benchmarks.sizes.files import RECIPES, fitting_layers, make, write_gguf
from benchmarks.sizes.models import MODELS
from benchmarks.sizes.qwen35 import write_qwen35
from benchmarks.sizes.report import write
from benchmarks.sizes.results import Case, Results
from benchmarks.sizes.rows import Row, parse
from benchmarks.sizes.targets import active_bytes
from core import LLM, SamplingParams

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
CHANGES = {
    "llama-8b": {},
    "gemma3-4b": {"query_pre_attn_scalar": 64, "sliding_window": 16},
    "qwen3-30b-a3b": {**EXPERTS, "num_experts": 8},
    "gpt-oss-20b": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16},
    "deepseek-v2-lite": {
        **EXPERTS,
        "n_routed_experts": 8,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "num_key_value_heads": 4,
    },
}
"""What makes each model small."""


@pytest.mark.parametrize("kind", FILLS, ids=lambda kind: kind.name)
def test_random_blocks_have_mean_zero_and_the_deviation_asked_for(kind):
    packed = random_blocks(kind, (64, 512), 0.05, np.random.default_rng(0))
    values = gguf.quants.dequantize(packed, kind)
    assert values.shape == (64, 512)
    assert abs(values.mean()) < 0.1 * 0.05
    assert 0.6 * 0.05 < values.std() < 1.7 * 0.05


def test_random_bfloat16_has_both_signs_and_no_outlier():
    bits = random_bfloat16((64, 512), 0.02, np.random.default_rng(0))
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert abs(values.mean()) < 0.001
    assert 0.5 * 0.02 < values.std() < 2 * 0.02
    assert np.abs(values).max() < 4 * 0.02


@pytest.mark.parametrize("name", CHANGES)
def test_a_small_model_of_each_architecture_loads_and_generates(name, tmp_path):
    config = {**MODELS[name].cut(3), **SMALL, **CHANGES[name]}
    path = tmp_path / "model.gguf"
    write_gguf(path, MODELS[name].architecture, config, MODELS[name].forms[0])
    llm = LLM(model=str(path), max_model_len=64, use_tqdm_on_load=False)
    try:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
        answer = llm.generate([{"prompt_token_ids": [5, 300, 7]}], params, use_tqdm=False)[0].outputs[0]
    finally:
        llm.close()
    assert len(answer.token_ids) == 8
    assert all(math.isfinite(entry.logprob) for step in answer.logprobs for entry in step.values())


def test_half_of_the_layers_of_q4_k_m_have_values_and_down_projections_in_6_bits(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", {**MODELS["llama-8b"].config, **SMALL, "num_hidden_layers": 4}, "Q4_K_M")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert [kinds[f"blk.{layer}.ffn_down.weight"] for layer in range(4)] == ["Q6_K", "Q4_K", "Q6_K", "Q4_K"]
    assert kinds["output.weight"] == "Q6_K"
    assert kinds["token_embd.weight"] == kinds["blk.0.ffn_up.weight"] == "Q4_K"


def test_files_are_made_once_and_say_their_layers(tmp_path, monkeypatch):
    small = MODELS["llama-8b"].__class__({**MODELS["llama-8b"].config, **SMALL}, ("Q4_K_M", "bf16"), "", "llama")
    monkeypatch.setitem(files.MODELS, "llama-8b", small)
    path = make("llama-8b", "Q4_K_M", 2, tmp_path)
    assert path.name == "llama-8b-Q4_K_M-2l.gguf"
    before = path.stat().st_mtime_ns
    assert make("llama-8b", "Q4_K_M", 2, tmp_path).stat().st_mtime_ns == before
    folder = make("llama-8b", "bf16", 2, tmp_path)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    assert {one.name for one in folder.iterdir()} >= {"model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize(("name", "form"), [("qwen3.5-35b-a3b", "the form bf16"), ("qwen3.5-0.8b", "gguf-bf16")])
def test_a_model_that_has_no_such_gguf_file_says_so(name, form, tmp_path):
    with pytest.raises(ValueError, match=f"expected {form}"):
        make(name, "Q4_K_M", 1, tmp_path)


def test_layers_of_a_gated_delta_rule_have_other_tensors_than_those_with_attention(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 512}
    path = tmp_path / "model.gguf"
    write_qwen35(path, MODELS["qwen3.5-0.8b"].cut(4) | sizes)
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert {"blk.0.ssm_out.weight", "blk.2.attn_qkv.weight", "blk.3.attn_k.weight"} <= names
    assert not {"blk.3.ssm_out.weight", "blk.0.attn_k.weight"} & names


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_all_that_fit_in_20_gb(name):
    for form in MODELS[name].forms:
        layers = fitting_layers(name, form)
        assert files.nbytes(name, form, layers) <= files.MOST_BYTES
        assert layers == MODELS[name].layers or files.nbytes(name, form, layers + 1) > files.MOST_BYTES
        assert form == "bf16" or form in RECIPES


def test_rows_are_tokens_and_streams():
    assert parse("128x1, 8kx16", 32) == [Row("128x1", 128, 1, 32), Row("8kx16", 8192, 16, 32)]
    with pytest.raises(ValueError, match="TOKENSxSTREAMS"):
        parse("8k", 32)


def test_prompts_differ_between_streams_and_seeds():
    row = Row("8x2", 8, 2, 1)
    first, second = row.prompts(1000, 1)
    assert len(first) == 8
    assert first != second
    assert row.prompts(1000, 2)[0] != first


def line(run, engine, speed, row="128x1"):
    case = {"model": "llama-8b", "form": "Q4_K_M", "layers": 6}
    figures = {"decode tok/s": speed, "prefill tok/s": 10 * speed, "peak MB": 100.0}
    return {
        "run": run,
        "date": "2026-01-01",
        "read GB/s": 50.0,
        **case,
        "row": row,
        "engine": engine,
        "figures": figures,
    }


def test_ratios_are_of_the_same_run_and_runs_add_up(tmp_path):
    results = Results(tmp_path / "sizes.jsonl")
    for run, ours, theirs in (("a", 30, 10), ("b", 10, 10), ("c", 40, 10)):
        results.add(line(run, "core", ours))
        results.add(line(run, "llama.cpp", theirs))
    results.add(line("d", "core", 1000))
    again = Results(results.path)
    case = Case("llama-8b", "Q4_K_M", 6)
    assert again.ratio(case, "128x1", "llama.cpp", "decode tok/s") == 3
    assert again.median(case, "128x1", "core", "decode tok/s") == 35
    assert again.ratio(case, "1kx1", "llama.cpp", "decode tok/s") is None


def test_the_page_names_what_is_slower_what_failed_and_what_was_not_measured(tmp_path):
    results = Results(tmp_path / "sizes.jsonl")
    results.add(line("a", "core", 10))
    results.add(line("a", "llama.cpp", 20))
    failed = line("a", "vllm", 0)
    del failed["figures"]
    results.add({**failed, "row": "all", "error": "it serves no Q4_K_M on a processor"})
    page = tmp_path / "sizes.md"
    write(results, page)
    text = page.read_text()
    assert "llama-8b Q4_K_M, 6 of 32 layers: S11 decode behind 128, one stream, 0.50× of llama.cpp" in text
    assert "vllm all: it serves no Q4_K_M on a processor" in text
    assert "- Models: gemma3-4b" in text
    assert "- Engines: ik_llama.cpp, vllm, openvino, mistral.rs." in text
    assert Path(tmp_path / "sizes.svg").read_text().startswith("<svg")


def test_the_page_of_performance_gets_its_section_once(tmp_path):
    performance = tmp_path / "performance.md"
    performance.write_text("# Performance\n\n## Machine\n\n### S1\n")
    results = Results(tmp_path / "sizes.jsonl")
    for engine, speed in (("core", 30), ("llama.cpp", 10)):
        results.add(line("a", engine, speed))
    write(results, tmp_path / "sizes.md")
    once = performance.read_text()
    assert once.startswith("# Performance\n\n## Models of real sizes\n")
    assert once.endswith("## Machine\n\n### S1\n")
    assert "| S11 decode behind 128, one stream | 3.00× |" in once
    write(results, tmp_path / "sizes.md")
    assert performance.read_text() == once


def test_an_aim_is_told_with_what_was_measured(tmp_path):
    results = Results(tmp_path / "sizes.jsonl")
    for engine, speed in (("core", 12), ("ik_llama.cpp", 10)):
        results.add(line("a", engine, speed))
    write(results, tmp_path / "sizes.md")
    text = (tmp_path / "sizes.md").read_text()
    assert "| S11 decode behind 128, one stream | ik_llama.cpp | 1.20× | ≥ 1.1× | met |" in text
    results.add(line("b", "core", 8))
    results.add(line("b", "ik_llama.cpp", 10))
    results.add(line("c", "core", 8))
    results.add(line("c", "ik_llama.cpp", 10))
    write(results, tmp_path / "sizes.md")
    assert "| 0.80× | ≥ 1.1× | **missed** |" in (tmp_path / "sizes.md").read_text()


def test_a_token_reads_the_experts_that_it_chooses():
    case = Case("qwen3-30b-a3b", "Q4_K_M", 4)
    whole = files.nbytes(case.model, case.form, case.layers)
    dense = Case("llama-8b", "Q4_K_M", 6)
    assert active_bytes(case) < 0.25 * whole
    embedding = 4096 * 128256 * 144 // 256
    assert active_bytes(dense) == files.nbytes(dense.model, dense.form, dense.layers) - embedding
