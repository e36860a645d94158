"""Every relation: a case that passes and a case that is refused, warned about or derived."""

import dataclasses
import re

import pytest

from core.api.pooling import PoolingConfig
from core.args.arg import Given
from core.plugin.hookspecs import Device, PluginSpec
from core_config.arguments.sources import merge
from core_config.rules import RULES, Derive, Facts, Problem, Warn, findings
from core_config.rules.model import length_limit
from core_config.stages.settings import Settings
from core_runtime.models.families import decoder_spec
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource
from core_runtime.specs.module_spec import ModuleSpec

GIB = 1 << 30
CPU = {"device": Device("cpu", "", 8 * GIB, 16 * GIB, 4)}
GPU = {"device": Device("cuda:0", "", 80 * GIB)}
CHECKS = {rule.check.__name__: rule for rule in RULES}


def model(tensors=(), generation=None, **changes):
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512, **changes}
    infos = {name: TensorInfo(name, (1,), "F32", 4, 0, 0, name) for name in tensors}
    manifest = CheckpointManifest("m", "safetensors", [], infos, config, TokenizerSource(), generation or {})
    return {"spec": decoder_spec(config), "manifest": manifest}


def wrapper(model_type, **changes):
    """Of a model around a text model."""
    known = model()
    config = {"model_type": model_type, "text_config": known["manifest"].config, **changes}
    return {**known, "manifest": CheckpointManifest("m", "safetensors", [], {}, config, TokenizerSource(), {})}


def facts(given, **known):
    """Facts with these arguments given by the user; names that start with `=` are settled by someone else."""
    merged = merge({}, {})
    rows = {name.lstrip("="): value for name, value in given.items()}
    for name, value in given.items():
        if not name.startswith("="):
            merged.values[name] = Given(value, "argument")
    made = Facts(Settings(merged), **known)
    for name, value in rows.items():
        made.settings.rows.setdefault(name, (value, "derived", ""))
        if "=" + name in given:
            made.settings.rows[name] = (value, "platform x", "")
    return made


def platform(**capabilities):
    return {"platform": PluginSpec(name="some", capabilities=capabilities)}


def compiled(**keys):
    return {"compilation_config": keys}


SHARED = model(
    model_type="gemma4_text", num_hidden_layers=5, num_kv_shared_layers=3, head_dim=16, hidden_size_per_layer_input=0,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
)  # fmt: skip
OFFLOADS = platform(offload_backends=["prefetch", "uva"])
MODULES = ModuleSpec(
    family="t", hidden_size=8, vocab_size=8, max_position=8, mixers=(), matrices=(), embedding_matrix=None, head_matrix=None,
    tied=False, tensors={},
)  # fmt: skip
BATCH = {"=max_num_seqs": 8, "=max_num_batched_tokens": 64}
BY_SIZE = "num_speculative_tokens_per_batch_size"
SPEC = {"method": "m", "num_speculative_tokens": 4}
DRAFT = SPEC | {"model": "d"}
TYPICAL = SPEC | {"acceptance_method": "typical_acceptance_sampler"}
SYNTHETIC = SPEC | {"rejection_sample_method": "synthetic"}
PRODUCER = {"kv_transfer_config": {"kv_connector": "tcp", "kv_role": "kv_producer"}}
BOTH = {"kv_connector": "tcp", "kv_role": "kv_both"}
GROUP = {"data_parallel_size": 2, "kv_transfer_config": BOTH}
OF_SEVERAL = GROUP | {"data_parallel_size_local": 1, "kv_peers": ["127.0.0.1:1"]}
KV = {"=kv_cache_memory_bytes": 1000}
LORA = {"enable_lora": True}
RANKS = {"tensor_parallel_size": 2}
CONTEXT = RANKS | {"decode_context_parallel_size": 2}
NODES = RANKS | {"nnodes": 2}
LAUNCHED = NODES | {
    "distributed_executor_backend": "external_launcher",
    "node_rank": 1,
    "master_addr": "a",
    "master_port": 5,
}
ENGINES = {"data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_backend": "ray"}
ON_RAY = RANKS | {"distributed_executor_backend": "ray"}
TOLD = {"enable_return_routed_experts": True}
EP = RANKS | {"enable_expert_parallel": True}
ROUND_ROBIN = {"expert_placement_strategy": "round_robin"}
MOE = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}
POOLS = PoolingConfig(kinds=("mean",), normalize=True, size=64, max_tokens=256, source="modules.json of m")
USUAL_POOLS = PoolingConfig(kinds=("cls",), normalize=True, size=64, source="usual for encoders: there is no file")
BERT = model(model_type="bert", type_vocab_size=2)
QWEN3 = model(model_type="qwen3", num_key_value_heads=4)
LFM2 = model(model_type="lfm2", layer_types=["conv", "full_attention"], num_key_value_heads=4)
SPECULATOR = {"speculators_model_type": "eagle3"}
SPECULATOR["speculators_config"] = {
    "verifier": {"name_or_path": "a/b"},
    "proposal_methods": [{"speculative_tokens": 5}],
}

# check, a case without findings, a case with one, and what is found: words of a problem or warning, or (name, value)
ELASTIC = {"enable_elastic_ep": True, "elastic_ep_max_dp_size": 3}
PORTS = {"data_parallel_multi_port_external_lb": True, "data_parallel_size": 2}

CASES = [
    ("log_length_needs_the_log", [{"max_log_len": 1, "enable_log_requests": True}], [{"max_log_len": 1}], "--max-log-len"),
    ("foreign_api_key_protects_nothing", [{"api_key": ["k"]}, {"environ": {"VLLM_API_KEY": "k"}}],
     [{}, {"environ": {"VLLM_API_KEY": "k"}}], "CORE_API_KEY, or give --api-key"),
    ("unknown_keys_are_listed", [{}, model()], [{}, model(trained_by="us")], "trained_by"),
    ("no_method_is_to_be_removed", [{}], [{"allow_deprecated_quantization": True}], "no quantization method is marked"),
    ("remote_code_is_not_run", [{}], [{"trust_remote_code": True}], "no effect"),
    ("revision_needs_its_owner", [{"revision": "v", "model": "m"}], [{"revision": "v"}], "--revision"),
    ("samples_are_of_metrics", [{"kv_cache_metrics": True, "kv_cache_metrics_sample": 0.5}],
     [{"kv_cache_metrics_sample": 0.5}], "--kv-cache-metrics-sample has no effect"),
    ("hub_arguments_need_a_hub", [{"model": "owner/model", "download_dir": "d", "revision": "v"}],
     [{"model": "/", "download_dir": "d", "revision": "v"}], "--revision, --download-dir: no effect"),
    ("hub_arguments_need_a_hub", [{"model": "/", "hf_token": "t"}, {"snapshot": "/"}],
     [{"model": "/", "hf_token": "t"}], "--hf-token: no effect"),
    ("hub_arguments_need_a_hub", [{"model": "/", "tokenizer": "owner/model", "hf_token": "t"}],
     [{"model": "/", "tokenizer": "/", "hf_token": "t"}], "--hf-token: no effect"),
    ("servers_read_their_arguments", [{"request_timeout": 1.0}, {"context": "serve"}],
     [{"request_timeout": 1.0}, {"context": "llm"}], "request_timeout: only a server reads this"),
    ("extensions_are_of_one_engine", [{"worker_extension_cls": "a:B"}],
     [{"worker_extension_cls": "a:B", "data_parallel_size": 2}], "serves one engine"),
    ("a_fingerprint_of_ones_own_has_a_value", [{"fingerprint_mode": "custom", "fingerprint_value": "a"}, {}],
     [{"fingerprint_mode": "custom"}], "give --fingerprint-value"),
    ("a_fingerprint_of_ones_own_has_a_value", [{}], [{"fingerprint_value": "a"}], "needs --fingerprint-mode custom"),
    ("a_log_file_has_levels_of_its_own", [{"log_level": "debug"}, {}],
     [{"log_level": "debug", "log_config_file": "a"}], "levels of its own"),
    ("llm_is_watched_otherwise", [{"enable_log_requests": False}, {"context": "llm"}],
     [{"enable_log_requests": True}, {"context": "llm"}], "--enable-log-requests: no effect here"),
    ("model_has_a_name", [{"model": "m"}], [{"model": " "}], "expected a path or a hub name"),
    ("served_names_are_names", [{"served_model_name": ["a"]}], [{"served_model_name": ["a", " "]}], "the name is empty"),
    ("a_tokenizer_that_is_not_wanted", [{"skip_tokenizer_init": True}],
     [{"skip_tokenizer_init": True, "tokenizer": "d"}], "--tokenizer has no effect"),
    ("arguments_of_a_tokenizer_need_a_plugin", [{"tokenizer_mode": "mine", "tokenizer_config": {"a": 1}}],
     [{"tokenizer_config": {"a": 1}}], "--tokenizer-config: no tokenizer plugin is used"),
    ("torchs_files_are_read_in_the_hosts_memory", [{}], [{"pt_load_map_location": "cpu"}],
     "--pt-load-map-location cpu: no effect"),
    ("strategies_of_torchao_are_of_its_files",
     [{"safetensors_load_strategy": "torchao"}, {"quantization": "torchao"}],
     [{"safetensors_load_strategy": "torchao"}, {"quantization": "gptq"}], "is none of torchao's"),
    ("io_processors_are_of_models_that_pool", [{"io_processor_plugin": "a"}, BERT | {"pooling": POOLS}],
     [{"io_processor_plugin": "a"}, QWEN3], "the model generates text"),
    ("served_names_swallow_the_model", [{"served_model_name": ["a", "b"]}],
     [{"served_model_name": ["a", "d/m.gguf"]}], "write the model"),
    ("cache_metrics_need_statistics", [{"kv_cache_metrics": True}],
     [{"kv_cache_metrics": True, "disable_log_stats": True}], "statistics"),
    ("restarts_serve_servers", [{"standby_engine": True}, {"context": "serve"}],
     [{"engine_restarts": 3, "keep_weights": "map"}, {"context": "llm"}], "--keep-weights, --engine-restarts: no effect"),
    ("restarts_serve_servers", [{"engine_restarts": 0}],
     [{"engine_restarts": 0, "standby_engine": True}], "no effect with --engine-restarts 0"),
    ("servers_read_their_arguments", [{"port": 1, "max_messages": 2}, {"context": "serve"}],
     [{"port": 1, "max_messages": 2}, {"context": "llm"}], "port, max_messages: only a server reads this"),
    ("servers_read_their_arguments", [{"chat_template": "{{ x }}", "max_num_seqs": 4}, {"context": "llm"}],
     [{"max_num_reqs_per_key": 2}, {"context": "llm"}], "max_num_reqs_per_key"),
    ("bitsandbytes_is_read_as_safetensors", [{}], [{"load_format": "bitsandbytes"}], ("quantization", "bitsandbytes")),
    ("bitsandbytes_is_read_as_safetensors", [{}], [{"load_format": "bitsandbytes"}], ("load_format", "auto")),
    ("bitsandbytes_is_read_as_safetensors",
     [{}, {"config": {"quantization_config": {"quant_method": "gptq"}}}],
     [{"load_format": "bitsandbytes"}, {"config": {"quantization_config": {"quant_method": "gptq"}}}],
     "is quantized with gptq"),
    ("measured_sizes_of_inputs_are_not_used", [{}, {"quantization": "fp8", **model(["a.weight_scale"])}],
     [{}, {"quantization": "fp8", **model(["a.weight_scale", "a.input_scale"])}], "a.input_scale and 0 more"),
    ("prefixes_are_shared_or_not", [{"disable_cascade_attn": False}, {"cascades": ["a"]}],
     [{"disable_cascade_attn": True}, {"cascades": ["a"]}], "a reads a prefix that sequences share once"),
    ("prefixes_are_shared_or_not", [{"disable_cascade_attn": True}], [{"disable_cascade_attn": False}],
     "no attention backend of this model"),
    ("gguf_file_has_its_own_loader", [{"load_format": "gguf"}, {"magic": b"GGUF3"}],
     [{"load_format": "dummy"}, {"magic": b"GGUF3"}], "is a GGUF file"),
    ("speculator_serves_its_verifier", [{"model": "s3://x"}, {"config": SPECULATOR}],
     [{"model": "d"}, {"config": SPECULATOR}], ("model", "a/b")),
    ("speculator_serves_its_verifier", [{"model": "d"}], [{"model": "d"}, {"config": SPECULATOR}],
     ("speculative_config", {"method": "eagle3", "model": "d", "num_speculative_tokens": 5})),
    ("offline_hub_name_is_its_snapshot",
     [{"model": "a/b"}, {"snapshot": "/x"}],
     [{"model": "a/b"}, {"snapshot": "/x", "environ": {"HF_HUB_OFFLINE": "1"}}], ("model", "/x")),
    ("length_fits_the_model", [{"max_model_len": 512}, model()],
     [{"max_model_len": 513}, model()], "max_position_embeddings is 512"),
    ("length_fits_the_model", [{"max_model_len": -1}, model()], [{"max_model_len": 0}, model()], "at least 1"),
    ("length_comes_from_the_model", [{"max_model_len": 100}, model()], [{}, model()], ("max_model_len", 512)),
    ("length_comes_from_the_model", [{"max_model_len": 100}, model()],
     [{"max_model_len": -1}, model(n_ctx=300)], ("max_model_len", 300)),
    ("longest_answer_comes_from_the_generation_config", [{}, model()],
     [{}, model(generation={"max_new_tokens": 9})], ("generation_config.max_new_tokens", 9)),
    ("longest_answer_comes_from_the_generation_config",
     [{"generation_config": "none"}, model(generation={"max_new_tokens": 9})],
     [{"override_generation_config": {"max_new_tokens": 0}}, model()], "from 1"),
    ("quantization_fits_the_platform",
     [{}, {"quantization": "a"} | platform(quantization=["a"])],
     [{}, {"quantization": "b"} | platform(quantization=["a"])],
     "'some' serves a"),
    ("quantization_without_kernels_is_slow", [{}, {"quantization": "a", "kernels": ["k"]}],
     [{}, {"quantization": "a"}], "slow reference"),
    ("loader_takes_quantized_checkpoints",
     [{}, {"loader": PluginSpec(name="l"), "quantization": "q"}],
     [{}, {"loader": PluginSpec(name="l", capabilities={"quantized": False}), "quantization": "q"}], "--load-format l"),
    ("loader_settings_go_to_the_loader",
     [{}, {"loader": PluginSpec(name="l")}],
     [{"model_loader_extra_config": {"a": 1}}, {"loader": PluginSpec(name="l")}],
     ("model_loader_extra_config", {"a": 1})),
    ("open_sizes_get_constants", [BATCH | {"=block_size": 16}],
     [{"=block_size": 16, "=max_num_seqs": 1}], ("max_num_batched_tokens", 2048)),
    ("budget_gives_each_sequence_a_token",
     [{"max_num_seqs": 8, "max_num_batched_tokens": 8}], [{"max_num_seqs": 9, "max_num_batched_tokens": 8}],
     "--max-num-seqs 9"),
    ("open_size_follows_the_given_one", [BATCH], [{"=max_num_seqs": 9, "max_num_batched_tokens": 8}], ("max_num_seqs", 8)),
    ("open_size_follows_the_given_one", [BATCH],
     [{"max_num_seqs": 9, "=max_num_batched_tokens": 8}], ("max_num_batched_tokens", 9)),
    ("platform_without_support_switches_off", [{}, platform()],
     [{"enable_chunked_prefill": True}, platform(chunked_prefill=False)],
     ("enable_chunked_prefill", False)),
    ("platform_without_support_switches_off", [{"enable_prefix_caching": True}, platform(prefix_caching=True)],
     [{"enable_prefix_caching": True}, platform(prefix_caching=False)], "--enable-prefix-caching is switched off"),
    ("chunks_and_prefixes_are_on",
     [{"enable_prefix_caching": False, "enable_chunked_prefill": False}], [{"enable_prefix_caching": False}],
     ("enable_chunked_prefill", True)),
    ("whole_prompts_hold_up_others", [{"enable_chunked_prefill": True}],
     [{"enable_chunked_prefill": False}], "fit one step whole"),
    ("whole_prompts_fit_the_budget", [BATCH | {"=enable_chunked_prefill": True, "=max_model_len": 512}],
     [BATCH | {"=enable_chunked_prefill": False, "=max_model_len": 512}], ("max_num_batched_tokens", 512)),
    ("whole_prompts_fit_the_budget", [BATCH | {"=enable_chunked_prefill": False, "=max_model_len": 32}],
     [BATCH | {"=enable_chunked_prefill": False, "=max_model_len": 2}], ("max_num_batched_tokens", 16)),
    ("whole_prompts_fit_the_budget", [BATCH | {"enable_chunked_prefill": False, "=max_model_len": 64}],
     [{"=max_num_seqs": 8, "max_num_batched_tokens": 64, "enable_chunked_prefill": False, "=max_model_len": 65}],
     "--no-enable-chunked-prefill"),
    ("long_prefills_are_part_of_all",
     [{"max_num_partial_prefills": 2, "max_long_partial_prefills": 2}], [{"max_long_partial_prefills": 2}],
     "--max-num-partial-prefills 1"),
    ("long_threshold_comes_from_the_length", [{"=max_model_len": 1000}],
     [{"=max_model_len": 1000, "max_num_partial_prefills": 2}], ("long_prefill_token_threshold", 40)),
    ("async_where_the_device_computes_alone", [{"async_scheduling": False}], [{}], ("async_scheduling", False)),
    ("async_where_the_device_computes_alone", [{"async_scheduling": False}, platform()],
     [{}, platform()], ("async_scheduling", True)),
    ("async_where_the_device_computes_alone", [{"async_scheduling": False}, platform()],
     [{"speculative_config": SPEC}, platform()], ("async_scheduling", True)),
    ("states_behind_drafts_are_known", [{"async_scheduling": True, "speculative_config": SPEC}, model()],
     [{"async_scheduling": True, "speculative_config": SPEC}, LFM2], ("async_scheduling", False)),
    ("states_behind_drafts_are_known", [{"async_scheduling": True}, LFM2],
     [{"async_scheduling": True, "speculative_config": SPEC}, LFM2], "--async-scheduling has no effect"),
    ("single_modes_are_served", [compiled(mode=3, cudagraph_mode="FULL_DECODE_ONLY")],
     [compiled(mode=1)], "compilation-config.mode 1 means 3"),
    ("single_modes_are_served", [compiled(level=0)], [compiled(cudagraph_mode="PIECEWISE")], "NONE, FULL or FULL_DECODE_ONLY"),
    ("repeated_values_agree", [{"optimization_level": 0, "enforce_eager": True}],
     [{"optimization_level": 1, "enforce_eager": True}], "--enforce-eager and --optimization-level 1 contradict"),
    ("repeated_values_agree", [{"optimization_level": 2, **compiled(use_cudagraph=True)}],
     [{"optimization_level": 2, **compiled(use_cudagraph=False)}], "use_cudagraph false contradict"),
    ("repeated_values_agree", [{"optimization_level": 3, **compiled(mode=3, level=3, backend="inductor")}],
     [{"optimization_level": 3, **compiled(mode=0)}], "--optimization-level 3 and --compilation-config.mode 0 contradict"),
    ("repeated_values_agree", [{"optimization_level": 2, "kernels": ["inductor", "auto"]}],
     [{"optimization_level": 0, "kernels": ["inductor", "auto"]}], "--kernels inductor,auto and --optimization-level 0"),
    ("repeated_values_agree", [compiled(mode=0, backend="eager")],
     [compiled(mode=3, backend="eager")], "backend eager"),
    ("repeated_values_agree",
     [{"cudagraph_capture_sizes": [4, 1], **compiled(cudagraph_capture_sizes=[1, 4])}],
     [{"cudagraph_capture_sizes": [4, 1], **compiled(cudagraph_capture_sizes=[1, 2])}], "--cudagraph-capture-sizes 4 1 and"),
    ("nothing_is_recorded_where_that_is_said", [{"optimization_level": 1}],
     [{"optimization_level": 0}], ("enforce_eager", True)),
    ("nothing_is_recorded_where_that_is_said", [compiled(use_cudagraph=True)],
     [compiled(cudagraph_mode="NONE")], ("enforce_eager", True)),
    ("nothing_is_recorded_where_that_is_said", [{"max_cudagraph_capture_size": 8}],
     [{"max_cudagraph_capture_size": 8, "enforce_eager": True}], "--max-cudagraph-capture-size 8 has no effect"),
    ("torch_compiles_where_that_is_said", [{"optimization_level": 2}],
     [{"optimization_level": 3}], ("kernels", ["auto", "inductor"])),
    ("torch_compiles_where_that_is_said", [compiled(mode=0)], [compiled(mode=3)], ("kernels", ["auto", "inductor"])),
    ("largest_size_is_among_the_sizes", [{"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 8}],
     [{"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 4}], "it is none of --cudagraph-capture-sizes 1 8"),
    ("compiled_code_is_kept_in_a_directory", [{"kernels": ["inductor"], **compiled(cache_dir="/tmp")}],
     [{"kernels": ["inductor"], **compiled(cache_dir=__file__)}], "it is a file"),
    ("compiled_code_is_kept_in_a_directory", [compiled(cache_dir="")], [compiled(cache_dir="/tmp")], "nothing is compiled"),
    ("an_order_names_operations_and_providers", [{"ir_op_priority": {"rms_norm": "k,torch"}}, {"kernels": ["k"]}],
     [{"ir_op_priority": {"rms_nom": ["k"]}}, {"kernels": ["k"]}], "no such operation; known: rms_norm,"),
    ("an_order_names_operations_and_providers", [{"ir_op_priority": {"rotary": ["native"]}}, {"kernels": ["k"]}],
     [{"ir_op_priority": {"rms_norm": "vllm_c"}}, {"kernels": ["k"]}],
     "rms_norm vllm_c: it is none of the providers here, k, torch"),
    ("an_order_names_operations_and_providers", [{}, {"kernels": ["k"]}],
     [{"ir_op_priority": {"rms_norm": 3}}, {"kernels": ["k"]}],
     "--ir-op-priority.rms_norm: expected names of providers, such as k,torch"),
    ("rounding_by_chance_needs_float16",
     [{"enable_mamba_cache_stochastic_rounding": True, "mamba_ssm_cache_dtype": "float16"}],
     [{"enable_mamba_cache_stochastic_rounding": True, "mamba_cache_dtype": "bfloat16"}],
     "recurrent part of states is bfloat16"),
    ("skipped_rows_need_shared_keys",
     [{"kv_sharing_fast_prefill": True, "speculative_config": {"method": "ngram"}}, SHARED],
     [{"kv_sharing_fast_prefill": True}, model()], "no effect on this model, whose last layers have keys"),
    ("skipped_rows_need_shared_keys", [{}, model()],
     [{"kv_sharing_fast_prefill": True, "speculative_config": {"method": "eagle3"}}, SHARED],
     "drafts by eagle3 read the hidden states of all tokens of a prompt"),
    ("skipped_rows_need_shared_keys", [{}, SHARED],
     [{"kv_sharing_fast_prefill": True}, {**SHARED, "pooling": POOLS}], "every token of a text that is pooled"),
    ("hidden_metrics_are_vllms", [{"show_hidden_metrics_for_version": "0.10", "vllm_metrics": True}],
     [{"show_hidden_metrics_for_version": "0.10"}], "no effect without --vllm-metrics"),
    ("hidden_metrics_are_vllms", [{}], [{"show_hidden_metrics_for_version": "0.30", "vllm_metrics": True}],
     "vLLM has hidden no metric since"),
    ("hidden_metrics_are_vllms", [{}], [{"show_hidden_metrics_for_version": "ten"}], "ten: expected a version of vLLM"),
    ("interactive_streams_wait_for_no_queue", [{"performance_mode": "throughput"}],
     [{"performance_mode": "interactivity"}], ("queued_prompts_weight", 0.0)),
    ("what_is_compiled_is_written", [{"kernels": ["inductor"], **compiled(debug_dump_path="/tmp")}],
     [{"kernels": ["inductor"], **compiled(debug_dump_path=__file__)}], "it is a file"),
    ("what_is_compiled_is_written", [compiled()], [compiled(debug_dump_path="/tmp")], "nothing is compiled"),
    ("named_blocks_are_not_recorded", [{}], [{"enable_layerwise_nvtx_tracing": True}], ("enforce_eager", True)),
    ("named_blocks_are_not_recorded", [{"enable_layerwise_nvtx_tracing": True, "enforce_eager": True}],
     [{"enable_layerwise_nvtx_tracing": True, "enforce_eager": False}], "has no effect in recorded steps"),
    ("bound_nodes_are_there", [{}], [{"numa_bind_nodes": [0]}], "--numa-bind-nodes has no effect without --numa-bind"),
    ("bound_nodes_are_there", [{}], [{"numa_bind": True, "numa_bind_nodes": [4000], "=device": "cpu"}],
     "--numa-bind-nodes 4000: this machine has no such node"),
    ("one_rank_is_bound", [{"numa_bind": True}], [{"numa_bind": True, **RANKS}], "--tensor-parallel-size is 2"),
    ("one_rank_is_bound", [{"numa_bind": True}], [{"numa_bind": True, "platform_config": {"thread-binding": "auto"}}],
     "both place threads"),
    ("level_is_told", [{"enforce_eager": True}], [{}], ("optimization_level", 2)),
    ("level_is_told", [{"optimization_level": 1}, platform(device_graphs=True)],
     [{"optimization_level": 1}, platform()], ("optimization_level", 1)),
    ("sizes_need_recordings_of_one_size", [{"cudagraph_capture_sizes": [1]}, platform(device_graphs=True)],
     [{"cudagraph_capture_sizes": [1]}], "on cpu, one recording serves steps of every size"),
    ("platform_and_sizes_agree", [{"max_cudagraph_capture_size": 8, "platform_config": {"largest_graph": 8}}],
     [{"max_cudagraph_capture_size": 16, "platform_config": {"largest-graph": 8}}], "--platform-config.largest-graph 8"),
    ("mixed_budget_is_part_of_the_budget", [{"max_num_mixed_batched_tokens": 8, "=max_num_batched_tokens": 8}],
     [{"=max_num_batched_tokens": 8}], ("max_num_mixed_batched_tokens", 8)),
    ("mixed_budget_is_part_of_the_budget", [{"max_num_mixed_batched_tokens": 8, "=max_num_batched_tokens": 8}],
     [{"max_num_mixed_batched_tokens": 9, "=max_num_batched_tokens": 8}], "--max-num-mixed-batched-tokens 9"),
    ("mixed_budget_is_part_of_the_budget", [{"max_num_mixed_batched_tokens": 8, "=max_num_batched_tokens": 8}],
     [{"=max_num_mixed_batched_tokens": 2, "=max_num_batched_tokens": 8, "max_stall_ms": 50.0}],
     ("max_num_mixed_batched_tokens", 8)),
    ("short_stalls_need_chunks", [{"max_stall_ms": 50.0, "=enable_chunked_prefill": True}],
     [{"max_stall_ms": 50.0, "=enable_chunked_prefill": False}], "leave one of the two out"),
    ("limits_of_keys_need_keys", [{"max_num_reqs_per_key": 2, "api_key": ["k"]}],
     [{"max_num_reqs_per_key": 2}], "--max-num-reqs-per-key"),
    ("public_prompts_need_keys", [{"public_prompt": ["a.txt"], "api_key": ["k"]}], [{"public_prompt": ["a.txt"]}],
     "share all cached prefixes"),
    ("shares_need_keys", [{"kv_share_per_key": 0.5, "api_key": ["k"]}], [{"kv_share_per_key": 0.5}],
     "--kv-share-per-key has no effect"),
    ("uds_replaces_host_and_port", [{"uds": "/run/s"}], [{"uds": "/run/s", "port": 1}], "leave --port out"),
    ("one_resolution_is_of_one_model", [{"model": "a"}], [{"model_budget": 1 << 30}], "only `core serve` reads this"),
    ("details_need_traces", [{"collect_detailed_traces": ["all"], "otlp_traces_endpoint": "http://a"}],
     [{"collect_detailed_traces": ["all"]}], "give --otlp-traces-endpoint"),
    ("llm_is_watched_otherwise", [{"log_config_file": "a"}, {"context": "serve"}],
     [{"log_config_file": "a"}, {"context": "llm"}], "--log-config-file: no effect here"),
    ("changing_weights_are_held_by_nobody", [{"enable_sleep_mode": True}, {}],
     [{"enable_sleep_mode": True, "keep_weights": "copy"}], "--enable-sleep-mode: --keep-weights holds on"),
    ("changing_weights_are_held_by_nobody", [{"keep_weights": "copy"}],
     [{"weight_transfer_config": {}, "state_canary": "d"}], "--weight-transfer-config: --state-canary holds on"),
    ("weights_are_kept_in_one_place", [{"keep_weights": "map"}, {"prepared_weights": "d"}],
     [{"keep_weights": "map", "prepared_weights": "d"}], "does the same for an engine that replaces another"),
    ("shared_limits_are_of_one_process", [{"shared_limits": "d"}, {"context": "serve"}],
     [{"shared_limits": "d", "api_server_count": 2}, {"context": "serve"}], "--shared-limits: not with --api-server-count 2"),
    ("sleep_frees_kept_blocks", [{"enable_sleep_mode": True}, {}],
     [{"enable_sleep_mode": True, "keep_kv": True}], "--enable-sleep-mode: --keep-kv holds on"),
    ("a_quarantine_has_a_list", [{"quarantine_plugins": True, "state_canary": "d"}], [{"quarantine_plugins": True}],
     "lies in the directory of --state-canary"),
    ("weights_are_replaced_by_friends", [{"weight_transfer_config": {}, "api_key": ["k"]}],
     [{"weight_transfer_config": {}}, {"context": "serve"}], "give --api-key"),
    ("weights_are_replaced_by_friends", [{"weight_transfer_config": {}, "headless": True}, {"context": "serve"}],
     [{"weight_transfer_config": {}}, {"context": "serve"}], "give --api-key"),
    ("paths_of_operators_need_an_operator",
     [{"enable_sleep_mode": True, "api_key": ["a", "b"], "admin_api_key": ["c"]}, {"context": "serve"}],
     [{"enable_sleep_mode": True, "api_key": ["a", "b"]}, {"context": "serve"}], "give --admin-api-key"),
    ("a_limit_of_processors_needs_some", [{"logits_processor_timeout": 1.0, "logits_processors": ["a:B"]}],
     [{"logits_processor_timeout": 1.0}], "--logits-processor-timeout has no effect"),
    ("meeting_needs_two", [{"headless": True, "data_parallel_rpc_port": 1}], [{"data_parallel_rpc_port": 1}],
     "--data-parallel-rpc-port: no effect here"),
    ("meeting_needs_two", [{"data_parallel_size_local": 0, "engine_key_file": "k"}],
     [{"data_parallel_size_local": 1, "engine_key_file": "k"}], "--engine-key-file: no effect here"),
    ("api_servers_read_their_arguments", [{"headless": True, "max_num_seqs": 2, "model": "m", "revision": "r"}],
     [{"headless": True, "port": 1, "stream_interval": 2}], "--stream-interval, --port: only the API server reads this"),
    ("api_servers_are_one_process", [{"data_parallel_size_local": 0}], [{"data_parallel_size_local": 0, "api_server_count": 2}],
     "is one process"),
    ("one_mode_is_named", [{"data_parallel_external_lb": True, "data_parallel_rank": 0}], [{"data_parallel_external_lb": True}],
     "--data-parallel-external-lb: needs --data-parallel-rank"),
    ("one_mode_is_named", [{"data_parallel_hybrid_lb": True, "data_parallel_size_local": 1}],
     [{"data_parallel_hybrid_lb": True}], "needs --data-parallel-size-local"),
    ("one_mode_is_named", [{"data_parallel_hybrid_lb": True, "data_parallel_size_local": 1}],
     [{"data_parallel_hybrid_lb": True, "data_parallel_rank": 0}], "give one"),
    ("one_mode_is_named", [{"data_parallel_rank": 0, "data_parallel_size_local": 1}],
     [{"data_parallel_rank": 0, "data_parallel_size_local": 2}], "--data-parallel-size-local 2"),
    ("one_mode_is_named", [{"data_parallel_start_rank": 0}], [{"data_parallel_rank": 0, "data_parallel_start_rank": 0}],
     "give the second alone"),
    ("one_mode_is_named", [{"data_parallel_size": 2, "data_parallel_size_local": 2}], [{"data_parallel_size_local": 2}],
     "more than all engines"),
    ("engines_come_and_go_in_one_command", [ELASTIC, {"context": "serve"}], [ELASTIC, {"context": "llm"}], "only `core serve`"),
    ("engines_come_and_go_in_one_command", [{"enable_elastic_ep": True, "data_parallel_size": 2}, {"context": "serve"}],
     [{"enable_elastic_ep": True}, {"context": "serve"}], "give --elastic-ep-max-dp-size"),
    ("engines_come_and_go_in_one_command", [ELASTIC | {"data_parallel_size": 3}, {"context": "serve"}],
     [ELASTIC | {"data_parallel_size": 4}, {"context": "serve"}], "is below --data-parallel-size 4"),
    ("engines_come_and_go_in_one_command", [{}], [{"elastic_ep_max_dp_size": 3}], "no effect without --enable-elastic-ep"),
    ("engines_come_and_go_in_one_command", [ELASTIC, {"context": "serve"}],
     [ELASTIC | {"data_parallel_size": 2, "data_parallel_rank": 1}, {"context": "serve"}], "not with --data-parallel-rank"),
    ("engines_come_and_go_in_one_command", [ELASTIC, {"context": "serve"}],
     [ELASTIC | {"data_parallel_size_local": 1}, {"context": "serve"}], "not with --data-parallel-size-local"),
    ("one_rank_is_bound", [{"numa_bind": True}], [ELASTIC | {"numa_bind": True}], "--elastic-ep-max-dp-size is 3"),
    ("groups_share_out_processors", [{"elastic_ep_max_dp_size": 3}, GPU], [ELASTIC, GPU], "--elastic-ep-max-dp-size 3: a"),
    ("ranks_are_of_the_group", [{"data_parallel_size": 2, "data_parallel_rank": 1}],
     [{"data_parallel_size": 2, "data_parallel_rank": 2}], "--data-parallel-rank: rank 2 is not among the 2"),
    ("ranks_are_of_the_group",
     [{"data_parallel_size": 4, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2, "data_parallel_start_rank": 2}],
     [{"data_parallel_size": 4, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2, "data_parallel_start_rank": 3}],
     "--data-parallel-start-rank: rank 4 is not among the 4"),
    ("groups_have_one_api_server", [{"data_parallel_size": 2, "headless": True, "data_parallel_start_rank": 1}],
     [{"data_parallel_size": 2, "data_parallel_start_rank": 1, "data_parallel_size_local": 1}], "have the first ranks"),
    ("groups_have_one_api_server", [{"data_parallel_size": 2, "data_parallel_size_local": 0}],
     [{"data_parallel_size": 2, "data_parallel_size_local": 0, "data_parallel_rank": 1}], "is no engine"),
    ("groups_have_one_api_server", [{"headless": True, "data_parallel_rank": 1, "data_parallel_size": 2}],
     [{"headless": True, "data_parallel_hybrid_lb": True}], "an engine alone has no address"),
    ("one_mode_is_named", [PORTS], [PORTS | {"headless": True}], "--headless and --data-parallel-multi-port"),
    ("one_mode_is_named", [PORTS], [PORTS | {"port": 0}], "the first of 2 ports"),
    ("one_mode_is_named", [PORTS], [PORTS | {"request_journal": "/j"}], "--request-journal: each server needs one of its own"),
    ("one_mode_is_named", [PORTS], [PORTS | {"data_parallel_size_local": 0}], "leaves it no engine"),
    ("one_mode_is_named", [PORTS], [PORTS, {"context": "llm"}], "only `core serve` starts servers"),
    ("groups_share_out_processors", [{"data_parallel_size": 2, "data_parallel_rank": 1}, GPU], [{"data_parallel_size": 2}, GPU],
     "a command starts one engine on"),
    ("logs_are_of_several", [{"aggregate_engine_logging": True, "data_parallel_size": 2}], [{"aggregate_engine_logging": True}],
     "--aggregate-engine-logging: no effect"),
    ("groups_hand_over_among_themselves", [{"data_parallel_size": 2, "data_parallel_rank": 1, **PRODUCER}],
     [{"data_parallel_size": 2, **PRODUCER}], "hand requests to one another, which needs kv_both"),
    ("groups_hand_over_among_themselves", [GROUP], [GROUP | {"kv_peers": ["127.0.0.1:1"]}], "are one another's peers"),
    ("groups_hand_over_among_themselves", [GROUP], [{"data_parallel_size": 2, "kv_transfer_config": BOTH | {"kv_port": 65535}}],
     "listen at 2 ports from it on"),
    ("groups_hand_over_among_themselves", [GROUP],
     [{"data_parallel_size": 2, "kv_transfer_config": BOTH | {"kv_load_failure_policy": "fail"}}], "compute again what they"),
    ("groups_hand_over_among_themselves", [OF_SEVERAL], [GROUP | {"data_parallel_size_local": 1}], "at addresses of their own"),
    ("groups_hand_over_among_themselves", [GROUP | {"headless": True, "kv_peers": ["127.0.0.1:1"]}],
     [GROUP | {"headless": True}], "name all of them with --kv-peers"),
    ("groups_hand_over_among_themselves", [OF_SEVERAL], [OF_SEVERAL | {"data_parallel_backend": "ray"}],
     "has an address of its own"),
    ("weights_fit_the_device", [{"=model": "m"}, {**GPU, "weights_bytes": 80 * GIB}],
     [{"=model": "m"}, {**GPU, "weights_bytes": 81 * GIB}], "need 81.0 GiB of memory, and the device has 80.0 GiB"),
    ("utilization_leaves_room", [{"gpu_memory_utilization": 0.98}], [{"gpu_memory_utilization": 0.99}], "may run out"),
    ("blocks_override_bytes", [KV], [{"num_gpu_blocks_override": 3, **KV}, {"block_bytes": 10}], ("kv_cache_memory_bytes", 30)),
    ("blocks_override_bytes", [KV],
     [{"num_gpu_blocks_override": 3, "kv_cache_memory_bytes": 9}, {"block_bytes": 10}],
     "--kv-cache-memory-bytes has no effect"),
    ("bytes_override_a_share", [{"kv_cache_memory_bytes": 9}],
     [{"kv_cache_memory_bytes": 9, "gpu_memory_utilization": 0.5}], "no effect together"),
    ("bytes_come_from_a_share", [KV, CPU],
     [{**KV, "gpu_memory_utilization": 0.25}, CPU | {"weights_bytes": GIB}], ("kv_cache_memory_bytes", 3 * GIB)),
    ("bytes_come_from_a_share", [{"kv_cache_memory_bytes": 5, "gpu_memory_utilization": 0.25}, CPU],
     [{"gpu_memory_utilization": 0.75}, CPU | {"weights_bytes": GIB}], ("kv_cache_memory_bytes", 7 * GIB)),
    ("bytes_come_from_a_share", [KV, CPU], [{}, GPU | {"weights_bytes": 0}], ("kv_cache_memory_bytes", 72 * GIB)),
    ("fp8_means_e4m3", [{"kv_cache_dtype": "bfloat16"}], [{"kv_cache_dtype": "fp8"}], ("kv_cache_dtype", "fp8_e4m3")),
    ("int4_means_k8v4", [{"kv_cache_dtype": "bfloat16"}], [{"kv_cache_dtype": "int4"}],
     ("kv_cache_dtype", "k8v4_per_token_head")),
    ("kv_dtype_fits_the_platform", [{"kv_cache_dtype": "fp8_e4m3"}, platform(kv_dtypes=["fp8_e4m3"])],
     [{"kv_cache_dtype": "fp8_e5m2"}, platform(kv_dtypes=["fp8_e4m3"])], "'some' serves fp8_e4m3"),
    ("kv_dtype_needs_scales", [{"kv_cache_dtype": "fp8_e4m3"}, model(["model.layers.0.self_attn.k_scale"])],
     [{"kv_cache_dtype": "fp8_e4m3"}, model(["a"])], "no scales"),
    ("skipped_layers_need_another_type",
     [{"kv_cache_dtype_skip_layers": ["0"], "dtype": "bfloat16", "kv_cache_dtype": "fp8_e4m3"}],
     [{"kv_cache_dtype_skip_layers": ["0"], "dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}], "has no effect"),
    ("host_memory_holds_offloaded_blocks", [{"kv_offloading_size": 10.0}, {"host_memory": 11 * GIB}],
     [{"kv_offloading_size": 12.0}, {"host_memory": 11 * GIB}], "--kv-offloading-size 12: this machine has 11.0 GiB"),
    ("offloaded_weights_have_one_backend", [{"cpu_offload_gb": 2.0, "cpu_offload_params": ["mlp"]}, GPU],
     [{"cpu_offload_gb": 2.0, "offload_group_size": 4}, GPU],
     "--cpu-offload-gb 2 reads weights in place, and --offload-group-size 4 copies them ahead"),
    ("offloaded_weights_have_one_backend", [{"offload_backend": "prefetch", "offload_group_size": 2}, GPU],
     [{"offload_backend": "prefetch", "cpu_offload_gb": 2.0}, GPU],
     "--offload-backend prefetch: give --offload-group-size, not --cpu-offload-gb"),
    ("offloaded_weights_have_one_backend", [{"offload_group_size": 2, "offload_prefetch_step": 2}, GPU],
     [{"offload_prefetch_step": 2}, GPU], "--offload-prefetch-step has no effect without --offload-group-size"),
    ("offloaded_blocks_are_in_a_group", [{"offload_group_size": 2, "offload_num_in_group": 2}, GPU],
     [{"offload_group_size": 2, "offload_num_in_group": 3}, GPU], "--offload-num-in-group 3: a group has 2 blocks"),
    ("offloading_needs_a_device", [{"offload_group_size": 2}, GPU | OFFLOADS], [{"offload_group_size": 2}, CPU],
     "--offload-group-size 2 has no effect on cpu, which computes in the host's memory"),
    ("offloading_needs_a_device", [{"cpu_offload_gb": 2.0}, GPU | OFFLOADS],
     [{"cpu_offload_gb": 2.0}, GPU | platform(offload_backends=["prefetch"])], "--offload-backend uva: some serves prefetch"),
    ("offloading_needs_a_device", [{"offload_group_size": 2}, GPU | OFFLOADS],
     [{"offload_group_size": 2, **RANKS}, GPU | OFFLOADS],
     "ranks that divide a model hold their weights on their devices"),
    ("offloaded_layers_are_ours", [{"offload_group_size": 2}, model()], [{"offload_group_size": 2}, {"spec": MODULES}],
     "the layers of transformers read their weights on the device"),
    ("host_memory_holds_offloaded_weights", [{"cpu_offload_gb": 9.0}, {"offloaded_bytes": 9 * GIB, "host_memory": 9 * GIB}],
     [{"cpu_offload_gb": 9.0}, {"offloaded_bytes": 9 * GIB, "host_memory": 8 * GIB}],
     "--cpu-offload-gb 9: 9.0 GiB of weights belong into host memory, and this machine has 8.0 GiB"),
    ("disk_size_needs_a_path", [{"kv_offloading_disk_size": 1.0, "kv_offloading_disk_path": "d"}],
     [{"kv_offloading_disk_size": 1.0}], "--kv-offloading-disk-path"),
    ("offloading_needs_prefix_caching", [{"kv_offloading_size": 1.0}, {}],
     [{"kv_offloading_size": 1.0, "enable_prefix_caching": False}], "--kv-offloading-size has no effect"),
    ("offloading_needs_prefix_caching", [{"enable_prefix_caching": False}],
     [{"kv_events_config": {"topic": "t"}, "enable_prefix_caching": False}], "--kv-events-config has no effect"),
    ("named_connectors_settle_offloading", [{"kv_connectors": ["file"]}],
     [{"kv_transfer_config": {"kv_connector": "OffloadingConnector",
                              "kv_connector_extra_config": {"cpu_bytes_to_use": 2 * GIB}}}],
     ("kv_offloading_size", 2.0)),
    ("prefixes_are_matched_in_blocks", [{"prefix_match_unit": 16, "=block_size": 16}],
     [{"prefix_match_unit": 8, "=block_size": 16}], "leave it out, or set --block-size 8"),
    ("states_are_kept_at_block_edges", [{"prefix_cache_retention_interval": 32, "=block_size": 16}],
     [{"prefix_cache_retention_interval": 24, "=block_size": 16}], "choose a multiple of 16"),
    ("kept_states_need_states", [{"mamba_cache_mode": "align", "=block_size": 16}],
     [{"mamba_cache_mode": "all", "=block_size": 16}], "has no effect on this model"),
    ("state_types_need_states", [{"mamba_cache_dtype": "float32"}], [{"mamba_ssm_cache_dtype": "float16"}],
     "--mamba-ssm-cache-dtype float16 has no effect on this model"),
    ("offloading_needs_prefix_caching", [{"kv_eviction": "arc"}],
     [{"kv_eviction": "arc", "enable_prefix_caching": False}], "--kv-eviction has no effect"),
    ("suffix_drafts_come_from_the_depth", [{"speculative_config": SPEC}],
     [{"speculative_config": {"method": "suffix"}}], ("speculative_config.num_speculative_tokens", 24)),
    ("suffix_drafts_come_from_the_depth", [{"speculative_config": SPEC | {"method": "suffix"}}],
     [{"speculative_config": {"method": "suffix", "suffix_decoding_max_tree_depth": 9}}],
     ("speculative_config.num_speculative_tokens", 9)),
    ("speculator_names_its_method", [{"speculative_config": DRAFT}, {"draft": SPECULATOR}],
     [{"speculative_config": {"model": "d"}}, {"draft": SPECULATOR}], ("speculative_config.method", "eagle3")),
    ("speculator_names_its_method", [{"speculative_config": DRAFT}, {"draft": SPECULATOR}],
     [{"speculative_config": {"model": "d"}}, {"draft": SPECULATOR}], ("speculative_config.num_speculative_tokens", 5)),
    ("method_and_count_are_given", [{"speculative_config": SPEC}],
     [{"speculative_config": {"method": "m", "num_speculative_tokens": 0}}], "from 1"),
    ("method_and_count_are_given", [{}], [{"speculative_config": {"num_speculative_tokens": 1}}], "'method' is missing"),
    ("budget_holds_the_drafts", [{"speculative_config": SPEC, "max_num_batched_tokens": 5}],
     [{"speculative_config": SPEC, "max_num_batched_tokens": 4}], "needs 5"),
    ("drafts_of_all_fit_the_budget", [{"speculative_config": SPEC, "max_num_seqs": 4, "max_num_batched_tokens": 20}],
     [{"speculative_config": SPEC, "max_num_seqs": 4, "max_num_batched_tokens": 19}], "want 20 tokens a step"),
    ("ngrams_are_in_order", [{"speculative_config": SPEC | {"prompt_lookup_min": 2, "prompt_lookup_max": 2}}],
     [{"speculative_config": SPEC | {"prompt_lookup_min": 3, "prompt_lookup_max": 2}}],
     "more than prompt_lookup_max 2"),
    ("ngrams_are_in_order", [{}], [{"speculative_config": SPEC | {"prompt-lookup-max": 0}}], "from 1"),
    ("shortest_ngram_comes_from_the_longest", [{"speculative_config": SPEC | {"prompt_lookup_min": 1, "prompt_lookup_max": 5}}],
     [{"speculative_config": SPEC | {"prompt_lookup_max": 5}}], ("speculative_config.prompt_lookup_min", 2)),
    ("drafts_stop_with_many_requests", [{"speculative_config": SPEC}],
     [{"speculative_config": SPEC | {"disable_by_batch_size": 9}}],
     ("speculative_config.disable_by_batch_size", 9)),
    ("drafts_stop_with_many_requests", [{"speculative_config": SPEC}],
     [{"speculative_config": SPEC | {"disable_by_batch_size": 1}}], "from 2"),
    ("drafts_adapt_or_not", [{"speculative_config": SPEC | {"adaptive": False}}],
     [{"speculative_config": SPEC | {"adaptive": "no"}}], "expected true or false"),
    ("batch_sizes_are_ranges", [{"speculative_config": SPEC | {BY_SIZE: [[1, 8, 4], [9, 64, 0]]}}],
     [{"speculative_config": SPEC | {BY_SIZE: [[1, 8, 4], [8, 64, 0]]}}], "do not overlap"),
    ("draft_runs_on_one_rank", [{"speculative_config": DRAFT | {"draft_tensor_parallel_size": 1}}],
     [{"speculative_config": DRAFT | {"draft_tensor_parallel_size": 2}}], "expected 1"),
    ("draft_ranks_are_one", [{"speculative_config": SPEC}], [{"speculative_config": DRAFT}],
     ("speculative_config.draft_tensor_parallel_size", 1)),
    ("draft_runs_on_the_models_device", [{"speculative_config": SPEC | {"device": "cuda"}}, CPU],
     [{"speculative_config": DRAFT | {"device": "cuda:1"}}, CPU], "runs on cpu"),
    ("typical_acceptance_has_a_threshold", [{"speculative_config": SPEC}],
     [{"speculative_config": TYPICAL}], ("speculative_config.posterior_threshold", 0.09)),
    ("typical_acceptance_alpha_is_a_root", [{"speculative_config": TYPICAL | {"posterior_alpha": 0.1}}],
     [{"speculative_config": TYPICAL | {"posterior_threshold": 0.25}}], ("speculative_config.posterior_alpha", 0.5)),
    ("typical_acceptance_alpha_is_a_root", [{"speculative_config": SPEC}],
     [{"speculative_config": TYPICAL | {"posterior_threshold": "x"}}], "between 0 and 1"),
    ("typical_acceptance_alpha_is_a_root", [{"speculative_config": TYPICAL | {"posterior_alpha": 1}}],
     [{"speculative_config": TYPICAL | {"posterior_alpha": 1.5}}], "at most 1"),
    ("acceptance_is_known", [{"speculative_config": SPEC | {"rejection_sample_method": "strict"}}],
     [{"speculative_config": SPEC | {"rejection_sample_method": "block"}}], "expected one of strict, probabilistic"),
    ("acceptance_is_known", [{"speculative_config": TYPICAL}],
     [{"speculative_config": TYPICAL | {"rejection_sample_method": "strict"}}], "name the same thing"),
    ("acceptance_has_its_own_numbers", [{"speculative_config": TYPICAL | {"posterior_alpha": 0.1}}],
     [{"speculative_config": SPEC | {"posterior_alpha": 0.1}}], "only with rejection_sample_method typical"),
    ("acceptance_has_its_own_numbers", [{"speculative_config": SYNTHETIC | {"synthetic_acceptance_length": 2}}],
     [{"speculative_config": TYPICAL | {"synthetic_acceptance_length": 2}}], "only with rejection_sample_method synthetic"),
    ("synthetic_acceptance_has_rates", [{"speculative_config": SYNTHETIC | {"synthetic_acceptance_length": 5}}],
     [{"speculative_config": SYNTHETIC | {"synthetic_acceptance_length": 5.5}}], "from 1 to 5"),
    ("synthetic_acceptance_has_rates", [{"speculative_config": SYNTHETIC | {"synthetic_acceptance_rates": [1, 1, 0.5, 0]}}],
     [{"speculative_config": SYNTHETIC | {"synthetic_acceptance_rates": [1, 0.5, 1, 0]}}], "expected 4 numbers"),
    ("synthetic_acceptance_has_rates", [{"speculative_config": SPEC}], [{"speculative_config": SYNTHETIC}], "give either"),
    ("draft_length_fits_both_models", [{"speculative_config": SPEC, "=max_model_len": 64}],
     [{"speculative_config": DRAFT, "=max_model_len": 64}], ("speculative_config.max_model_len", 64)),
    ("draft_length_fits_both_models", [{"speculative_config": SPEC, "=max_model_len": 64}],
     [{"speculative_config": DRAFT, "=max_model_len": 64}, {"draft": {"max_position_embeddings": 32}}],
     ("speculative_config.max_model_len", 32)),
    ("draft_length_fits_both_models", [{"speculative_config": DRAFT | {"max_model_len": 7}}],
     [{"speculative_config": DRAFT | {"max_model_len": "x"}}], "from 1"),
    ("encoders_see_whole_texts", [{}, model()], [{}, BERT], ("enable_chunked_prefill", False)),
    ("encoders_see_whole_texts", [{"enable_prefix_caching": False}, BERT], [{"enable_prefix_caching": True}, BERT],
     "--enable-prefix-caching has no effect"),
    ("texts_are_as_long_as_trained", [{"=max_model_len": 200}, {**BERT, "pooling": POOLS}],
     [{"=max_model_len": 512}, {**BERT, "pooling": POOLS}], ("max_model_len", 256)),
    ("texts_are_as_long_as_trained", [{"max_model_len": 512}, {**BERT, "pooling": POOLS}],
     [{"=max_model_len": 512}, {**BERT, "pooling": POOLS}], ("max_model_len", 256)),
    ("pooling_has_no_drafts", [{"speculative_config": SPEC}], [{"speculative_config": SPEC}, {"pooling": POOLS}],
     "nothing can be drafted for --runner pooling"),
    ("pooling_has_no_drafts", [TOLD, model(**MOE)], [TOLD, {"pooling": POOLS, **model(**MOE)}], "outputs are vectors"),
    ("pooling_is_implied", [{}, {"pooling": POOLS}], [{}, {"pooling": USUAL_POOLS}], "Say otherwise with --pooler-config"),
    ("keys_of_the_pooler_pool", [{"pooler_config": {"pooling_type": "CLS"}}, {**BERT, "pooling": POOLS}],
     [{"pooler_config": {"pooling_type": "CLS"}}, model()], "--pooler-config has no effect"),
    ("keys_of_the_pooler_pool", [{"convert": "embed"}, {**BERT, "pooling": POOLS}], [{"convert": "embed"}, model()],
     "--convert embed has no effect"),
    ("rerankers_may_generate", [{"model": "Qwen/Qwen3-4B"}, QWEN3], [{"model": "Qwen/Qwen3-Reranker-4B"}, QWEN3],
     "--runner pooling serves /score"),
    ("settings_need_the_switch", [LORA | {"max_loras": 2}], [{"max_loras": 2, "lora_directory": "/"}],
     "--max-loras, --lora-directory: no effect without --enable-lora"),
    ("some_switches_change_nothing", [LORA], [LORA | {"fully_sharded_loras": True, "max_lora_cls_labels": 3}],
     "--fully-sharded-loras, --max-lora-cls-labels: no effect"),
    ("the_canary_probes_those_of_the_start", [LORA | {"state_canary": "/somewhere", "lora_modules": ["a=/"]}],
     [LORA | {"state_canary": "/somewhere"}], "adapters that are loaded later are not probed"),
    ("modules_are_understood", [LORA | {"lora_modules": ["a=/", '[{"name": "b", "path": "/"}]']}],
     [LORA | {"lora_modules": ["a"]}], "expected NAME=PATH"),
    ("modules_are_understood", [LORA | {"lora_modules": ["a=/"]}], [LORA | {"lora_modules": ["a=/", "a=/tmp"]}],
     "two adapters have the name 'a'"),
    ("modules_are_understood", [LORA | {"lora_modules": ["a=/"]}],
     [LORA | {"lora_modules": ["m=/"], "served_model_name": ["m"]}], "the name is taken by the model"),
    ("modules_are_understood", [{"lora_modules": ["a=/nowhere/at/all"]}], [LORA | {"lora_modules": ["a=/nowhere/at/all"]}],
     "there is no such file or directory"),
    ("towers_with_adapters_are_here", [LORA | {"model": "m"}, model()],
     [LORA | {"enable_tower_connector_lora": True, "model": "m"}, model()], "--enable-tower-connector-lora: no effect, since"),
    ("memory_holds_a_step", [LORA | {"max_loras": 2, "max_cpu_loras": 2}], [LORA | {"max_loras": 3, "max_cpu_loras": 2}],
     "--max-cpu-loras 2: fewer than --max-loras 3"),
    ("memory_holds_a_step", [{}], [LORA | {"max_loras": 2, "lora_modules": ["a=/", "b=/", "c=/"]}], ("max_cpu_loras", 3)),
    ("memory_holds_a_step", [{}], [LORA | {"max_loras": 4, "max_cpu_loras": 0}], ("max_cpu_loras", 4)),
    ("memory_holds_a_step", [{}], [LORA | {"lora_modules": ["a=/"], "default_mm_loras": {"image": "/"}}], ("max_cpu_loras", 2)),
    ("media_have_adapters_of_their_own", [LORA | {"default_mm_loras": {"image": "/", "audio": "/"}}],
     [LORA | {"default_mm_loras": {"smell": "/"}}], "--default-mm-loras smell: expected one of image, video, audio"),
    ("media_have_adapters_of_their_own", [{"default_mm_loras": {"image": "/nowhere/at/all"}}],
     [LORA | {"default_mm_loras": {"image": "/nowhere/at/all"}}], "there is no such file or directory"),
    ("media_have_adapters_of_their_own", [LORA], [LORA | {"default_mm_loras": {"image": 7}}], "7 is no path"),
    ("media_have_adapters_of_their_own", [LORA | {"lora_modules": ["image=/"]}],
     [LORA | {"lora_modules": ["image=/"], "default_mm_loras": {"image": "/"}}], "the name is taken"),
    ("media_have_adapters_of_their_own", [LORA | {"qlora_adapter_name_or_path": "/"}],
     [LORA | {"qlora_adapter_name_or_path": "/", "default_mm_loras": {"image": "/"}}], "give one of them"),
    ("media_with_adapters_are_served", [{"default_mm_loras": {"image": "/"}, "model": "m"}, model()],
     [LORA | {"default_mm_loras": {"image": "/"}, "model": "m"}, model()], "image: the model takes text; leave it out"),
    ("media_with_adapters_are_served", [LORA | {"default_mm_loras": {}, "model": "m"}, model(model_type="whisper")],
     [LORA | {"default_mm_loras": {"audio": "/"}, "model": "m"}, model(model_type="whisper")], "the model transcribes sounds"),
    ("media_with_adapters_are_served",
     [LORA | {"default_mm_loras": {"image": "/"}, "model": "/"}, wrapper("llava", image_token_id=1)],
     [LORA | {"default_mm_loras": {"audio": "/"}, "model": "/"}, wrapper("llava", image_token_id=1)],
     "--default-mm-loras audio: no sounds of the model are served"),
    ("updating_needs_a_directory", [LORA | {"allow_runtime_lora_updating": True, "lora_directory": "/"}],
     [LORA | {"allow_runtime_lora_updating": True}], "give --lora-directory"),
    ("updating_needs_a_directory", [LORA | {"allow_runtime_lora_updating": True, "weight_transfer_config": {}}],
     [LORA | {"allow_runtime_lora_updating": True}], "or --weight-transfer-config for those in shared memory"),
    ("updating_needs_a_directory", [{"lora_directory": "/nowhere/at/all"}], [LORA | {"lora_directory": "/nowhere/at/all"}],
     "there is no such directory"),
    ("updating_is_for_friends", [LORA | {"allow_runtime_lora_updating": True, "api_key": ["k"]}],
     [LORA | {"allow_runtime_lora_updating": True}], "any client that reaches it may load adapters"),
    ("drafts_of_adapters_fit_the_budget", [{"speculative_config": SPEC} | LORA | BATCH],
     [{"speculative_config": SPEC} | LORA | BATCH | {"=max_num_seqs": 16}], "16 sequences (--max-num-seqs) need 80 tokens"),
    ("limits_are_counts", [{"limit_mm_per_prompt": {"image": 2, "video": 0}}], [{"limit_mm_per_prompt": {"image": -1}}],
     "-1 is no count"),
    ("limits_are_counts", [{"limit_mm_per_prompt": {"image": {"count": 1}}}], [{"limit_mm_per_prompt": {"smell": 1}}],
     "expected one of image, video, audio"),
    ("files_are_read_as_said", [{"media_io_kwargs": {"video": {"fps": 0.5}}}],
     [{"media_io_kwargs": {"video": {"num_frames": 1}}}],
     "--media-io-kwargs video.num_frames: 1; expected num_frames from 2 on"),
    ("files_are_read_as_said", [{"media_io_kwargs": {}}], [{"media_io_kwargs": {"image": {"fps": 1}}}],
     "--media-io-kwargs image"),
    ("words_have_times_in_transcriptions", [{"model": "m"}, model(model_type="whisper")],
     [{"enable_word_times": True, "model": "m"}, model()], "the model writes no transcripts"),
    ("words_have_times_in_transcriptions", [{"model": "m"}, model(model_type="whisper")],
     [{"enable_word_times": True, "model": "m"}, model(model_type="whisper")], "has no alignment_heads"),
    ("videos_are_pruned_by_a_share", [{"video_pruning_rate": 0.5, "video_pruning_method": "evs"}],
     [{"video_pruning_rate": 1.0}], "expected a share from 0 to below 1"),
    ("videos_are_pruned_by_a_share", [{"video_pruning_rate": 0.0}], [{"video_pruning_method": "evs"}],
     "no effect without --video-pruning-rate"),
    ("pruned_rows_are_counted_first", [{"video_pruning_rate": 0.5, "model": "m"}, wrapper("qwen2_5_vl")],
     [{"video_pruning_rate": 0.5, "model": "m"}, wrapper("qwen3_vl")], "how many rows a frame keeps"),
    ("nothing_is_profiled", [{"max_image_pixels": 5}], [{"skip_mm_profiling": True}], "--skip-mm-profiling: no effect"),
    ("local_media_lie_in_a_directory", [{"allowed_local_media_path": "/"}],
     [{"allowed_local_media_path": "/nowhere/at/all"}], "there is no such directory"),
    ("processed_media_are_shared", [{"mm_processor_cache_type": "shm", "api_server_count": 2}],
     [{"mm_processor_cache_type": "shm"}], "no effect with one API process"),
    ("processed_media_are_shared", [{}], [{"mm_shm_cache_max_object_size_mb": 5}],
     "no effect without --mm-processor-cache-type shm"),
    ("settings_need_media", [{"language_model_only": True, "model": "m"}, model()],
     [{"max_image_pixels": 5, "model": "m"}, model()], "--max-image-pixels: no effect, since the model takes text"),
    ("settings_fit_the_medium", [{"max_audio_seconds": 5.0, "model": "m"}, model(model_type="whisper")],
     [{"max_image_pixels": 5, "model": "m"}, model(model_type="whisper")], "since the model takes sounds alone"),
    ("given_rows_have_a_form", [{"enable_mm_embeds": True, "model": "m"}, wrapper("llava")],
     [{"enable_mm_embeds": True, "model": "m"}, wrapper("idefics3")],
     "--enable-mm-embeds: no effect, since the processor of models of type 'idefics3'"),
    ("experts_are_shared_by_ranks", [EP], [{"enable_expert_parallel": True}], "no effect with one rank"),
    ("experts_are_shared_by_ranks", [EP], [EP | {"pipeline_parallel_size": 2}], "stages hold different ones"),
    ("placement_needs_expert_parallelism", [EP | {"enable_eplb": True}], [RANKS | {"enable_eplb": True}],
     "with --enable-expert-parallel alone"),
    ("placement_needs_expert_parallelism", [EP | ROUND_ROBIN], [RANKS | ROUND_ROBIN], "no effect without"),
    ("balance_needs_moves", [EP | {"enable_eplb": True, "num_redundant_experts": 2}], [EP | {"num_redundant_experts": 2}],
     "redundant experts are chosen by --enable-eplb"),
    ("balance_needs_moves", [EP], [EP | {"eplb_step_interval": 2}], "--eplb-step-interval: no effect"),
    ("balance_has_one_spelling", [{"eplb_config": {"window-size": 3}, "eplb_window_size": 3}],
     [{"eplb_config": {"window-size": 3}, "eplb_window_size": 4}], "--eplb-config.window_size says 3"),
    ("model_has_experts", [EP, model(**MOE)], [EP, model()], "the model has no experts"),
    ("outputs_tell_what_there_is", [TOLD, model(**MOE)], [TOLD, model()], "experts: the model has no experts"),
    ("outputs_tell_what_there_is", [TOLD, model(**MOE)], [TOLD | {"pipeline_parallel_size": 2}, model(**MOE)],
     "leave --pipeline-parallel-size out"),
    ("ranks_run_on_mp", [{"tensor_parallel_size": 1}], [RANKS], ("executor", "mp")),
    ("ranks_run_on_mp", [RANKS], [RANKS | {"distributed_executor_backend": "uni"}], "it has one rank"),
    ("ranks_run_on_mp", [{"executor": "torch"}], [RANKS | {"executor": "torch"}], "leave it out, or the ranks"),
    ("one_rank_has_no_others", [RANKS | {"distributed_timeout_seconds": 5.0}], [{"distributed_timeout_seconds": 5.0}],
     "no effect with one rank"),
    ("context_divides_ranks", [CONTEXT], [CONTEXT | {"tensor_parallel_size": 3}], "give a divisor of 3, or more ranks"),
    ("context_divides_ranks", [RANKS | {"cp_kv_cache_interleave_size": 1}], [RANKS | {"cp_kv_cache_interleave_size": 128}],
     "--cp-kv-cache-interleave-size: no effect with --decode-context-parallel-size 1"),
    ("blocks_have_a_piece_on_each_rank", [RANKS], [CONTEXT], ("block_size", 256)),
    ("blocks_have_a_piece_on_each_rank", [RANKS], [CONTEXT | {"cp_kv_cache_interleave_size": 384}], ("block_size", 768)),
    ("blocks_have_a_piece_on_each_rank", [CONTEXT | {"block_size": 256}], [CONTEXT | {"block_size": 128}], "give 256"),
    ("blocks_have_a_piece_on_each_rank", [CONTEXT], [CONTEXT | {"cp_kv_cache_interleave_size": 64}],
     "give a multiple of 128"),
    ("blocks_have_a_piece_on_each_rank", [CONTEXT], [CONTEXT | {"cp_kv_cache_interleave_size": 640}],
     "has 1280 tokens, expected at most 1024"),
    ("context_divides_equal_heads", [CONTEXT, model(num_key_value_heads=1)], [CONTEXT, model()], "heads of keys is on 1 rank"),
    ("ranks_lack_some_features", [LORA | RANKS], [LORA | RANKS | {"distributed_executor_backend": "ray"}],
     "--enable-lora: not with --distributed-executor-backend ray"),
    ("ranks_lack_some_features", [RANKS | {"kv_cache_dtype_skip_layers": ["0"]}],
     [{"pipeline_parallel_size": 2, "kv_cache_dtype_skip_layers": ["0"]}], "not with --pipeline-parallel-size yet"),
    ("ranks_lack_some_features", [RANKS | {"kv_offloading_size": 1.0}], [NODES | {"kv_offloading_size": 1.0}],
     "--kv-offloading-size: not with --nnodes 2"),
    ("ranks_lack_some_features", [RANKS | {"speculative_config": SPEC | {"method": "ngram"}}],
     [RANKS | {"speculative_config": SPEC}], "ngram or suffix"),
    ("ranks_generate_text", [RANKS], [RANKS | {"runner": "pooling"}], "--runner pooling: not with"),
    ("ranks_compute_on_processors", [{}, platform()], [RANKS, platform()], "--device cpu alone"),
    ("nodes_share_out_ranks", [NODES], [{"node_rank": 1}], "--node-rank 1: is not among --nnodes 1"),
    ("nodes_share_out_ranks", [NODES], [{"master_port": 5}], "--master-port: no effect with --nnodes 1"),
    ("nodes_share_out_ranks", [NODES | {"node_rank": 1}], [NODES | {"node_rank": 2}], "is not among --nnodes 2"),
    ("nodes_share_out_ranks", [NODES], [{"nnodes": 2}], "each node has equally many ranks"),
    ("nodes_share_out_ranks", [NODES | {"tensor_parallel_size": 8}], [NODES | {"tensor_parallel_size": 6}],
     "3 ranks a node divide --tensor-parallel-size 6 unevenly"),
    ("nodes_share_out_ranks", [NODES | {"pipeline_parallel_size": 3, "nnodes": 3}],
     [NODES | {"tensor_parallel_size": 4, "pipeline_parallel_size": 3}], "6 ranks a node divide --tensor-parallel-size 4"),
    ("nodes_prove_who_they_are", [NODES], [NODES | {"master_addr": "10.0.0.1"}], "give all nodes the same --engine-key-file"),
    ("nodes_prove_who_they_are", [NODES], [NODES | {"engine_key_file": "/nowhere"}], "/nowhere: cannot be read"),
    ("nodes_have_one_engine", [NODES], [NODES | {"data_parallel_size": 2}], "not with several engines"),
    ("nodes_have_one_engine", [NODES], [NODES | {"disable_custom_all_reduce": True}], "gloo knows no keys"),
    ("nodes_have_one_engine", [NODES], [NODES | {"enable_eplb": True}], "--enable-eplb: not with --nnodes 2"),
    ("nodes_have_one_engine", [NODES | {"headless": True, "node_rank": 1}], [NODES | {"headless": True}],
     "node 0 of --nnodes 2 answers requests"),
    ("nodes_have_one_engine", [NODES | {"node_rank": 1}], [NODES | {"node_rank": 1}, {"context": "llm"}],
     "only `core serve` computes for the engine of another node"),
    ("nodes_have_one_engine", [LAUNCHED, {"context": "llm"}], [LAUNCHED | {"enable_eplb": True}],
     "--enable-eplb: not with --distributed-executor-backend external_launcher"),
    ("launchers_start_all_ranks", [LAUNCHED], [RANKS | {"distributed_executor_backend": "external_launcher"}],
     "RANK and WORLD_SIZE are not set"),
    ("launchers_start_all_ranks", [LAUNCHED], [LAUNCHED | {"tensor_parallel_size": 8}], "torchrun --nproc-per-node 8"),
    ("launchers_start_all_ranks", [LAUNCHED], [{name: LAUNCHED[name] for name in LAUNCHED if name != "master_addr"}],
     "MASTER_ADDR and MASTER_PORT are not set"),
    ("launchers_start_all_ranks", [NODES | {"engine_key_file": "/key"}], [LAUNCHED | {"engine_key_file": "/key"}],
     "--engine-key-file: no effect with external_launcher"),
    ("ray_starts_all_ranks", [ON_RAY | {"ray_workers_use_nsight": True}], [RANKS | {"ray_workers_use_nsight": True}],
     "--ray-workers-use-nsight: no effect without"),
    ("ray_starts_all_ranks", [ON_RAY], [{"distributed_executor_backend": "ray"}], "no effect with one rank"),
    ("ray_starts_all_ranks", [ON_RAY | {"nnodes": 2}], [ON_RAY | {"nnodes": 2, "node_rank": 1}], "Ray starts all nodes"),
    ("ray_starts_all_ranks", [NODES | {"engine_key_file": "/key"}], [ON_RAY | {"engine_key_file": "/key"}],
     "--engine-key-file: no effect with Ray"),
    ("ranks_run_on_mp", [RANKS], [ON_RAY], ("executor", "ray")),
    ("ranks_lack_some_features", [RANKS | {"kv_offloading_size": 1.0}], [ON_RAY | {"kv_offloading_size": 1.0}],
     "--kv-offloading-size: not with --distributed-executor-backend ray"),
    ("ray_starts_engines", [ENGINES], [ENGINES, {"context": "llm"}], "only `core serve` has engines that Ray starts"),
    ("ray_starts_engines", [ENGINES], [ENGINES | {"data_parallel_rank": 0}], "one command starts all engines"),
    ("ray_starts_engines", [ENGINES], [{"data_parallel_size": 2, "data_parallel_backend": "ray"}],
     "give --data-parallel-size-local"),
    ("ray_starts_engines", [ENGINES], [ENGINES | {"data_parallel_size_local": 2}], "leaves Ray no engine"),
    ("meeting_needs_two", [NODES | {"engine_connect_timeout": 5.0}], [{"engine_connect_timeout": 5.0}], "no effect here"),
    ("api_servers_read_their_arguments", [NODES | {"api_key": ["k"]}], [NODES | {"node_rank": 1, "api_key": ["k"]}],
     "beside --node-rank 1"),
]  # fmt: skip


def run(name, case):
    given, known = case[0], case[1] if len(case) > 1 else {}
    return list(CHECKS[name].check(facts(given, **known)))


@pytest.mark.parametrize("name, good, bad, expected", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_rule(name, good, bad, expected):
    relevant = run(name, good)
    found = run(name, bad)
    if isinstance(expected, tuple):
        assert expected in [(f.name, f.value) for f in found if isinstance(f, Derive)]
        assert expected not in [(f.name, f.value) for f in relevant if isinstance(f, Derive)]
        assert all(f.reason for f in found if isinstance(f, Derive))
    else:
        assert any(expected in f.text for f in found if isinstance(f, (Problem, Warn))), found
        assert not any(isinstance(f, (Problem, Warn)) for f in relevant), relevant


def test_every_check_has_a_case():
    assert set(CHECKS) == {case[0] for case in CASES}


def test_a_rule_is_named_and_says_what_it_is_about():
    """Names are not numbers of a list; the docstring is the relation in a sentence."""
    assert len({rule.check.__name__ for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert not re.match(r"[a-z]\d", rule.check.__name__), rule
        assert rule.check.__doc__.endswith("."), rule


@pytest.mark.parametrize("stage", ["arguments", "platform", "model", "memory", "plugins"])
def test_defaults_need_no_words(stage):
    """With nothing given, no rule complains."""
    known = {**CPU, **model(), "host_memory": 16 * GIB, "block_bytes": 10, "kernels": ["k"]}
    settled = {"=block_size": 16, "=max_model_len": 512, **BATCH, **KV, "=enable_chunked_prefill": True}
    found = list(findings(RULES, stage, facts(settled, **known)))
    assert all(isinstance(finding, Derive) for finding in found), found


@pytest.mark.parametrize("junk", [None, "x", -1, 1.5, True, [], {}, [1], {"a": 1}])
def test_nonsense_in_a_mapping_is_no_crash(junk):
    """Keys of mappings have any JSON type."""
    config = dict.fromkeys(
        ["method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "model", "device", "max_model_len",
         "draft_tensor_parallel_size", "acceptance_method", "posterior_threshold", "posterior_alpha", "rejection_sample_method",
         "synthetic_acceptance_rates", "synthetic_acceptance_length", "disable_by_batch_size"], junk,
    )  # fmt: skip
    given = {"speculative_config": config, "attention_config": {"x": junk}}
    given |= {"override_generation_config": {"max_tokens": junk}, "=max_model_len": 512, **BATCH, **KV}
    known = {**CPU, **model(), "config": {"quantization_config": junk, "speculators_config": junk}, "block_bytes": 10}
    for stage in ("arguments", "reference", "platform", "model", "memory", "plugins"):
        said = [found.text for found in findings(RULES, stage, facts(given, **known)) if not isinstance(found, Derive)]
        assert all(len(text) > 15 and "Traceback" not in text for text in said), said


def test_linear_scaling_stretches_the_model_unless_some_layers_are_not_scaled():
    scaled = facts({}, **model(rope_scaling={"rope_type": "linear", "factor": 4.0}))
    assert length_limit(scaled)[0] == 2048 and "RoPE" in length_limit(scaled)[2]
    mixed = model(
        model_type="gemma3_text",
        sliding_window=64,
        rope_local_base_freq=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
    )
    assert length_limit(facts({}, **mixed))[0] == 512


def test_later_rules_see_what_earlier_ones_derived():
    made = facts({"max_num_batched_tokens": 4, "=max_num_seqs": 8, "=block_size": 16}, **CPU)
    list(findings(RULES, "platform", made))
    assert made["max_num_seqs"] == 4
    assert made["enable_chunked_prefill"] is True


def test_rules_change_no_given_value_in_silence():
    """A finding that replaces a given value comes with a warning, unless the value asked to be derived."""
    for case in CASES:
        given, known = case[2][0], case[2][1] if len(case[2]) > 1 else {}
        found = run(case[0], case[2])
        forced = [f for f in found if isinstance(f, Derive) and f.force and f.name in given]
        asked = [f for f in forced if given[f.name] in (-1, 0, "auto") or dataclasses.is_dataclass(known)]
        if forced and not asked and case[0] != "offline_hub_name_is_its_snapshot":
            assert any(isinstance(f, Warn) for f in found), case
