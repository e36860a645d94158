"""Every numbered relation: a case that passes and a case that is refused, warned about or derived."""

from __future__ import annotations

import dataclasses

import pytest

from core.api.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource
from core.args.arg import Given
from core.args.schema import schema
from core.args.sources import merge
from core.config.rules import RULES, Derive, Facts, Problem, Warn, findings
from core.config.rules.model import length_limit
from core.config.settings import Settings
from core.models.families import decoder_spec
from core.plugin.hookspecs import Device, PluginSpec

GIB = 1 << 30
CPU = {"device": Device("cpu", "", 8 * GIB, 16 * GIB, 4), "num_devices": 1}
TWO_GPUS = {"device": Device("cuda:0", "", 80 * GIB), "num_devices": 2}
CHECKS = {rule.check.__name__: rule for rule in RULES if rule.check is not None}


def model(tensors=(), generation=None, **changes):
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512, **changes}
    infos = {name: TensorInfo(name, (1,), "F32", 4, 0, 0, name) for name in tensors}
    manifest = CheckpointManifest("m", "safetensors", [], infos, config, TokenizerSource(), generation or {})
    return {"spec": decoder_spec(config), "manifest": manifest}


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


BATCH = {"=max_num_seqs": 8, "=max_num_batched_tokens": 64}
SPEC = {"method": "m", "num_speculative_tokens": 4}
DRAFT = SPEC | {"model": "d"}
TYPICAL = SPEC | {"acceptance_method": "typical_acceptance_sampler"}
KV = {"=kv_cache_memory_bytes": 1000}
DP = {"data_parallel_size": 4}
LFM2 = model(model_type="lfm2", layer_types=["conv", "full_attention"])
LIMIT = "limit_mm_per_prompt"
SPECULATOR = {"speculators_model_type": "eagle3"}
SPECULATOR["speculators_config"] = {
    "verifier": {"name_or_path": "a/b"},
    "proposal_methods": [{"speculative_tokens": 5}],
}

# check, a case without findings, a case with one, and what is found: words of a problem or warning, or (name, value)
CASES = [
    ("c1_log_length", [{"max_log_len": 1, "enable_log_requests": True}], [{"max_log_len": 1}], "--max-log-len"),
    ("c10_foreign_key", [{"api_key": ["k"]}, {"environ": {"VLLM_API_KEY": "k"}}],
     [{}, {"environ": {"VLLM_API_KEY": "k"}}], "CORE_API_KEY, or give --api-key"),
    ("c2_remote_code", [{}], [{"trust_remote_code": True}], "no effect"),
    ("c3_revisions", [{"revision": "v", "model": "m"}], [{"revision": "v"}], "--revision"),
    ("c4_served_names", [{"served_model_name": ["a", "b"]}],
     [{"served_model_name": ["a", "d/m.gguf"]}], "write the model"),
    ("r22_other_platforms",
     [{"additional_config": {"some": 1, "mine": 2}}, platform() | {"platforms": ["some", "other"]}],
     [{"additional_config": {"other": 1}}, platform() | {"platforms": ["some", "other"]}], "platform is 'some'"),
    ("n14_twice",
     [{"attention_backend": "a", "attention_config": {"backend": "a"}}],
     [{"cudagraph_capture_sizes": [1], "compilation_config": {"cudagraph_capture_sizes": [2]}}], "differ"),
    ("n40_cache_metrics", [{"kv_cache_metrics": True}],
     [{"kv_cache_metrics": True, "disable_log_stats": True}], "statistics"),
    ("n40_cache_metrics", [{"kv_cache_metrics_sample": 1.0}], [{"kv_cache_metrics_sample": 0.0}], "at most 1"),
    ("n41_traces",
     [{"collect_detailed_traces": ["all"], "otlp_traces_endpoint": "http://x"}], [{"collect_detailed_traces": ["all"]}],
     "--otlp-traces-endpoint"),
    ("n42_ranges",
     [{"enable_layerwise_nvtx_tracing": True, "enforce_eager": True}], [{"enable_layerwise_nvtx_tracing": True}],
     "--enforce-eager"),
    ("n46_tools",
     [{"enable_auto_tool_choice": True, "tool_call_parser": "p"}], [{"enable_auto_tool_choice": True}],
     "--tool-call-parser"),
    ("n52_additional",
     [{"additional_config": {"a": [1, {"b": None}]}}], [{"additional_config": {"a": [1, {"b": object()}]}}],
     "--additional-config.a[1].b: a object"),
    ("n28_tokens_only", [{}], [{"tokens_only": True}], ("skip_tokenizer_init", True)),
    ("n30_online", [{}], [{"quantization": "inc"}], ("pt_load_map_location", "cpu")),
    ("n15_bitsandbytes",
     [{"quantization": "bitsandbytes"}], [{"quantization": "bitsandbytes"}, {"loaders": ["bitsandbytes"]}],
     ("load_format", "bitsandbytes")),
    ("n15_bitsandbytes",
     [{}, {"loaders": ["bitsandbytes"]}],
     [{"load_format": "dummy"},
      {"loaders": ["bitsandbytes"], "config": {"quantization_config": {"quant_method": "bitsandbytes"}}}],
     "--load-format dummy"),
    ("n15_gguf", [{"load_format": "gguf"}, {"magic": b"GGUF3"}],
     [{"load_format": "dummy"}, {"magic": b"GGUF3"}], "is a GGUF file"),
    ("n16_speculator", [{"model": "s3://x"}, {"config": SPECULATOR}],
     [{"model": "d"}, {"config": SPECULATOR}], ("model", "a/b")),
    ("n16_speculator", [{"model": "d"}], [{"model": "d"}, {"config": SPECULATOR}],
     ("speculative_config", {"method": "eagle3", "model": "d", "num_speculative_tokens": 5})),
    ("n17_offline",
     [{"model": "a/b"}, {"snapshot": "/x"}],
     [{"model": "a/b"}, {"snapshot": "/x", "environ": {"HF_HUB_OFFLINE": "1"}}], ("model", "/x")),
    ("r8_too_long", [{"max_model_len": 512}, model()],
     [{"max_model_len": 513}, model()], "max_position_embeddings is 512"),
    ("r8_too_long", [{"max_model_len": -1}, model()], [{"max_model_len": 0}, model()], "at least 1"),
    ("r8_length", [{"max_model_len": 100}, model()], [{}, model()], ("max_model_len", 512)),
    ("r8_length", [{"max_model_len": 100}, model()], [{"max_model_len": -1}, model(n_ctx=300)], ("max_model_len", 300)),
    ("r10_window",
     [{"disable_sliding_window": True, "=max_model_len": 512}, model()],
     [{"disable_sliding_window": True, "=max_model_len": 512},
      model(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=2)], ("max_model_len", 64)),
    ("r10_window",
     [{"max_model_len": 512}, model(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=2)],
     [{"disable_sliding_window": True, "max_model_len": 512},
      model(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=2)], "at most the window, 64"),
    ("r13_shards",
     [{"load_format": "sharded_state"}, {"files": ["model-rank-0-part-0.safetensors"]}],
     [{"load_format": "sharded_state"}, {"files": [f"model-rank-{i}-part-0.safetensors" for i in (0, 1)]}], "2 ranks"),
    ("n49_longest_answer", [{}, model()],
     [{}, model(generation={"max_new_tokens": 9})], ("generation_config.max_new_tokens", 9)),
    ("n49_longest_answer",
     [{"generation_config": "none"}, model(generation={"max_new_tokens": 9})],
     [{"override_generation_config": {"max_new_tokens": 0}}, model()], "from 1"),
    ("r7_quantization",
     [{}, {"quantization": "a"} | platform(quantization=["a"])],
     [{}, {"quantization": "b"} | platform(quantization=["a"])],
     "'some' serves a"),
    ("r7_slow", [{}, {"quantization": "a", "kernels": ["k"]}], [{}, {"quantization": "a"}], "slow reference"),
    ("r42_loader",
     [{}, {"loader": PluginSpec(name="l"), "quantization": "q"}],
     [{}, {"loader": PluginSpec(name="l", capabilities={"quantized": False}), "quantization": "q"}], "--load-format l"),
    ("r54_loader_settings",
     [{}, {"loader": PluginSpec(name="l")}],
     [{"model_loader_extra_config": {"a": 1}}, {"loader": PluginSpec(name="l")}],
     ("model_loader_extra_config", {"a": 1})),
    ("r21_sharded_loras",
     [{"fully_sharded_loras": True, "tensor_parallel_size": 2}], [{"fully_sharded_loras": True}], "no effect"),
    ("r52_ray", [{}], [{"worker_use_ray": True}], ("distributed_executor_backend", "ray")),
    ("r52_ray", [{}], [{"worker_use_ray": True, "distributed_executor_backend": "mp"}], "different executors"),
    ("n13_pipeline",
     [{"pipeline_parallel_size": 2, "distributed_executor_backend": "my.Executor"}],
     [{"pipeline_parallel_size": 2, "distributed_executor_backend": "uni"}], "runs one stage"),
    ("n19_decode_context",
     [{"tensor_parallel_size": 4, "decode_context_parallel_size": 2}],
     [{"tensor_parallel_size": 4, "decode_context_parallel_size": 3}], "does not divide"),
    ("n24_nodes",
     [{"nnodes": 2, "tensor_parallel_size": 4, "node_rank": 1}], [{"nnodes": 2, "tensor_parallel_size": 3}], "3 ranks"),
    ("n24_nodes", [{"nnodes": 2, "tensor_parallel_size": 2}],
     [{"nnodes": 2, "tensor_parallel_size": 2, "node_rank": 2}], "0 to 1"),
    ("n24_nodes",
     [{"distributed_executor_backend": "uni"}],
     [{"nnodes": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "ray"}], "choose mp"),
    ("n24_rank", [{"nnodes": 2, "tensor_parallel_size": 4}],
     [{**DP, "nnodes": 2, "node_rank": 1}], ("data_parallel_rank", 2)),
    ("n22_implied", [{"=data_parallel_rank": 1}], [{"data_parallel_rank": 0}], ("data_parallel_external_lb", True)),
    ("n22_external",
     [{"data_parallel_external_lb": True, "data_parallel_rank": 0}], [{"data_parallel_external_lb": True}],
     "--data-parallel-rank"),
    ("n22_external",
     [{"data_parallel_external_lb": True, "nnodes": 2, "data_parallel_size_local": 1}],
     [{"data_parallel_external_lb": True, "data_parallel_rank": 0, "data_parallel_size_local": 2}], "1 replica"),
    ("n23_start_rank",
     [{"data_parallel_start_rank": 1, "headless": True}], [{"data_parallel_start_rank": 0}],
     ("data_parallel_hybrid_lb", True)),
    ("n21_hybrid",
     [{"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}], [{"data_parallel_hybrid_lb": True}],
     "--data-parallel-size-local"),
    ("n21_hybrid",
     [{"headless": True}], [{"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2, "headless": True}],
     "--headless"),
    ("n21_hybrid", [{"data_parallel_external_lb": True}],
     [{"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2, "data_parallel_external_lb": True}], "exclude"),
    ("n21_fallback",
     [{**DP, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}],
     [{**DP, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 1}], ("data_parallel_external_lb", True)),
    ("n21_fallback", [{**DP}],
     [{**DP, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 4}], ("data_parallel_hybrid_lb", False)),
    ("n26_local", [{**DP, "data_parallel_size_local": 2}], [DP], ("data_parallel_size_local", 4)),
    ("n26_local", [{"data_parallel_size_local": 2}],
     [{**DP, "data_parallel_backend": "ray", "additional_config": {"ray_packing": "span"}}],
     ("data_parallel_size_local", 1)),
    ("n25_address", [{}], [{**DP, "master_addr": "10.0.0.1"}], ("data_parallel_address", "10.0.0.1")),
    ("n25_address", [{}], [{**DP, "data_parallel_rpc_port": 1}], "all replicas are on this node"),
    ("n44_synchronization",
     [{"disable_nccl_for_dp_synchronization": False}], [{"async_scheduling": True}],
     ("disable_nccl_for_dp_synchronization", True)),
    ("r12_devices", [{"tensor_parallel_size": 2}, TWO_GPUS], [{"tensor_parallel_size": 3}, TWO_GPUS], "found: 2"),
    ("r12_devices", [{"tensor_parallel_size": 4}, CPU], [{"tensor_parallel_size": 5}, CPU], "share 4 processors"),
    ("n47_numa", [{"numa_bind_cpus": ["0", "1"]}, TWO_GPUS],
     [{"numa_bind_cpus": ["0"]}, TWO_GPUS], "2 visible devices"),
    ("n50_executor", [{"distributed_executor_backend": "ray"}, CPU],
     [{}, CPU], ("distributed_executor_backend", "uni")),
    ("n50_executor", [{"distributed_executor_backend": "ray"}, CPU],
     [{"tensor_parallel_size": 2}, TWO_GPUS], ("distributed_executor_backend", "mp")),
    ("n50_executor", [{"distributed_executor_backend": "ray"}, CPU],
     [{"tensor_parallel_size": 3}, TWO_GPUS], "do not fit"),
    ("n6_constants", [BATCH | {"=block_size": 16}],
     [{"=block_size": 16, "=max_num_seqs": 1}], ("max_num_batched_tokens", 2048)),
    ("r29_fewer_tokens_than_sequences",
     [{"max_num_seqs": 8, "max_num_batched_tokens": 8}], [{"max_num_seqs": 9, "max_num_batched_tokens": 8}],
     "--max-num-seqs 9"),
    ("r29_capped_sequences", [BATCH], [{"=max_num_seqs": 9, "max_num_batched_tokens": 8}], ("max_num_seqs", 8)),
    ("r29_capped_sequences", [BATCH],
     [{"max_num_seqs": 9, "=max_num_batched_tokens": 8}], ("max_num_batched_tokens", 9)),
    ("n9_platform_without", [{}, platform()], [{"enable_chunked_prefill": True}, platform(chunked_prefill=False)],
     ("enable_chunked_prefill", False)),
    ("n9_platform_without", [{"enable_prefix_caching": True}, platform(prefix_caching=True)],
     [{"enable_prefix_caching": True}, platform(prefix_caching=False)], "--enable-prefix-caching is switched off"),
    ("n7_on_where_supported",
     [{"enable_prefix_caching": False, "enable_chunked_prefill": False}], [{"enable_prefix_caching": False}],
     ("enable_chunked_prefill", True)),
    ("n8_against_support", [{"enable_chunked_prefill": True}],
     [{"enable_chunked_prefill": False}], "fit one step whole"),
    ("n8_pooling", [{"runner": "pooling"}], [{"runner": "pooling", "enable_prefix_caching": True}], "--runner pooling"),
    ("n5_whole_prompts", [BATCH | {"=enable_chunked_prefill": True, "=max_model_len": 512}],
     [BATCH | {"=enable_chunked_prefill": False, "=max_model_len": 512}], ("max_num_batched_tokens", 512)),
    ("n5_whole_prompts", [BATCH | {"=enable_chunked_prefill": False, "=max_model_len": 32}],
     [BATCH | {"=enable_chunked_prefill": False, "=max_model_len": 2}], ("max_num_batched_tokens", 16)),
    ("n5_whole_prompts", [BATCH | {"enable_chunked_prefill": False, "=max_model_len": 64}],
     [{"=max_num_seqs": 8, "max_num_batched_tokens": 64, "enable_chunked_prefill": False, "=max_model_len": 65}],
     "--no-enable-chunked-prefill"),
    ("n10_pattern", [{}], [{"logits_processor_pattern": "x.*"}], "--logits-processors"),
    ("n51_partial_prefills",
     [{"max_num_partial_prefills": 2, "max_long_partial_prefills": 2}], [{"max_long_partial_prefills": 2}],
     "--max-num-partial-prefills 1"),
    ("n51_long_threshold", [{"=max_model_len": 1000}],
     [{"=max_model_len": 1000, "max_num_partial_prefills": 2}], ("long_prefill_token_threshold", 40)),
    ("n45_async", [{"async_scheduling": False}], [{}], ("async_scheduling", False)),
    ("n45_async", [{"async_scheduling": False}, platform()], [{}, platform()], ("async_scheduling", True)),
    ("n45_against_drafts", [{"async_scheduling": True}],
     [{"async_scheduling": True, "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}],
     "leave one of them out"),
    ("mixed_budget", [{"max_num_mixed_batched_tokens": 8, "=max_num_batched_tokens": 8}],
     [{"=max_num_batched_tokens": 8}], ("max_num_mixed_batched_tokens", 8)),
    ("mixed_budget", [{"max_num_mixed_batched_tokens": 8, "=max_num_batched_tokens": 8}],
     [{"max_num_mixed_batched_tokens": 9, "=max_num_batched_tokens": 8}], "--max-num-mixed-batched-tokens 9"),
    ("n20_interleave", [{"block_size": 16, "cp_kv_cache_interleave_size": 8}],
     [{"block_size": 16, "cp_kv_cache_interleave_size": 12}], "choose --block-size 24"),
    ("r45_eager", [{}], [{"enforce_eager": True}], ("max_cudagraph_capture_size", 0)),
    ("r45_eager", [{"cudagraph_capture_sizes": [1]}],
     [{"enforce_eager": True, "cudagraph_capture_sizes": [1]}], "no effect"),
    ("n43_largest_capture",
     [{"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 8}],
     [{"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 4}], "is 8"),
    ("n43_default_capture", [{**BATCH}, platform()],
     [{**BATCH}, platform(device_graphs=True)], ("max_cudagraph_capture_size", 16)),
    ("n43_default_capture", [{**BATCH}, platform()],
     [{"=max_num_seqs": 999}, platform(device_graphs=True)], ("max_cudagraph_capture_size", 512)),
    ("r4_range", [{"gpu_memory_utilization": 1.0}], [{"gpu_memory_utilization": 0.0}], "above 0 and at most 1"),
    ("r4_utilization", [{"gpu_memory_utilization": 0.98}], [{"gpu_memory_utilization": 0.99}], "may run out"),
    ("r31_blocks", [KV], [{"num_gpu_blocks_override": 3, **KV}, {"block_bytes": 10}], ("kv_cache_memory_bytes", 30)),
    ("r31_blocks", [KV],
     [{"num_gpu_blocks_override": 3, "kv_cache_memory_bytes": 9}, {"block_bytes": 10}],
     "--kv-cache-memory-bytes has no effect"),
    ("n31_bytes", [{"kv_cache_memory_bytes": 9}],
     [{"kv_cache_memory_bytes": 9, "gpu_memory_utilization": 0.5}], "no effect beside"),
    ("n31_share", [KV, CPU],
     [{**KV, "gpu_memory_utilization": 0.25}, CPU | {"weights_bytes": GIB}], ("kv_cache_memory_bytes", 3 * GIB)),
    ("n31_share", [{"kv_cache_memory_bytes": 5, "gpu_memory_utilization": 0.25}, CPU],
     [{"gpu_memory_utilization": 0.75}, CPU | {"weights_bytes": GIB}], ("kv_cache_memory_bytes", 7 * GIB)),
    ("n31_share", [KV, CPU], [{}, TWO_GPUS | {"weights_bytes": 0}], ("kv_cache_memory_bytes", 72 * GIB)),
    ("r34_plain_fp8", [{"kv_cache_dtype": "bfloat16"}], [{"kv_cache_dtype": "fp8"}], ("kv_cache_dtype", "fp8_e4m3")),
    ("r34_platform", [{"kv_cache_dtype": "fp8_e4m3"}, platform(kv_dtypes=["fp8_e4m3"])],
     [{"kv_cache_dtype": "fp8_e5m2"}, platform(kv_dtypes=["fp8_e4m3"])], "'some' serves fp8_e4m3"),
    ("r3_scales", [{"kv_cache_dtype": "fp8_e4m3"}, model(["model.layers.0.self_attn.k_scale"])],
     [{"kv_cache_dtype": "fp8_e4m3"}, model(["a"])], "no scales"),
    ("r39_host", [{"cpu_offload_gb": 10.0}, {"host_memory": 11 * GIB}],
     [{"cpu_offload_gb": 10.0, "kv_offloading_size": 2.0}, {"host_memory": 11 * GIB}], "12 GiB together"),
    ("n32_offloading", [{"kv_offloading_backend": "native", "kv_offloading_size": 1.0}],
     [{"kv_offloading_backend": "native"}], "--kv-offloading-size"),
    ("n32_offloading", [{"kv_offloading_backend": "native", "kv_offloading_disk_path": "d"}],
     [{"kv_offloading_backend": "native"}], "--kv-offloading-disk-path"),
    ("c6_disk_size", [{"kv_offloading_disk_size": 1.0, "kv_offloading_disk_path": "d"}],
     [{"kv_offloading_disk_size": 1.0}], "--kv-offloading-disk-path"),
    ("c7_prefix_caching", [{"kv_offloading_size": 1.0}, {}],
     [{"kv_offloading_size": 1.0, "enable_prefix_caching": False}], "--kv-offloading-size has no effect"),
    ("c7_prefix_caching", [{"enable_prefix_caching": False}],
     [{"kv_events_config": {"topic": "t"}, "enable_prefix_caching": False}], "--kv-events-config has no effect"),
    ("c8_states", [{"=enable_prefix_caching": True}, model()],
     [{"=enable_prefix_caching": True}, LFM2], ("enable_prefix_caching", False)),
    ("c8_states", [{"enable_prefix_caching": False}, LFM2],
     [{"enable_prefix_caching": True}, LFM2], "--enable-prefix-caching is switched off"),
    ("c9_states", [{"speculative_config": SPEC}, model()],
     [{"speculative_config": SPEC}, LFM2], "leave --speculative-config out"),
    ("n33_ambiguous", [{"offload_group_size": 1}],
     [{"offload_group_size": 1, "cpu_offload_gb": 1.0}], "name --offload-backend"),
    ("n33_backend", [{}], [{"offload_group_size": 2}], ("offload_backend", "prefetch")),
    ("n33_backend", [{"offload_backend": "prefetch"}], [{"cpu_offload_gb": 2.0}], ("offload_backend", "uva")),
    ("n34_group", [{"offload_num_in_group": 2, "offload_group_size": 2}],
     [{"offload_num_in_group": 3, "offload_group_size": 2}], "--offload-group-size 2"),
    ("n35_mamba", [{"mamba_block_size": 16}], [{"mamba_block_size": 12}], "such as 16"),
    ("n35_mamba", [{"mamba_block_size": 16, "enable_prefix_caching": True}],
     [{"mamba_block_size": 16, "enable_prefix_caching": False}], "needs prefix caching"),
    ("n35_mode", [{}], [{"enable_prefix_caching": False}], ("mamba_cache_mode", "none")),
    ("r6_count", [{"speculative_config": SPEC}],
     [{"speculative_config": {"method": "m", "num_speculative_tokens": 0}}], "from 1"),
    ("r6_count", [{}], [{"speculative_config": {"num_speculative_tokens": 1}}], "'method' is missing"),
    ("r40_budget", [{"speculative_config": SPEC, "max_num_batched_tokens": 5}],
     [{"speculative_config": SPEC, "max_num_batched_tokens": 4}], "needs 5"),
    ("n12_lora_budget", [{"speculative_config": SPEC, "enable_lora": True, "=max_num_seqs": 8, "=max_num_batched_tokens": 40}],
     [{"speculative_config": SPEC, "enable_lora": True, "=max_num_seqs": 8, "=max_num_batched_tokens": 39}], "need 40"),
    ("r49_ngrams", [{"speculative_config": SPEC | {"prompt_lookup_min": 2, "prompt_lookup_max": 2}}],
     [{"speculative_config": SPEC | {"prompt_lookup_min": 3, "prompt_lookup_max": 2}}],
     "more than prompt_lookup_max 2"),
    ("r49_ngrams", [{}], [{"speculative_config": SPEC | {"prompt-lookup-max": 0}}], "from 1"),
    ("r20_shortest", [{"speculative_config": SPEC | {"prompt_lookup_min": 1, "prompt_lookup_max": 5}}],
     [{"speculative_config": SPEC | {"prompt_lookup_max": 5}}], ("speculative_config.prompt_lookup_min", 2)),
    ("r23_threshold", [{"speculative_config": SPEC}], [{"speculative_config": SPEC | {"disable_by_batch_size": 9}}],
     ("speculative_config.disable_by_batch_size", 9)),
    ("r23_threshold", [{"speculative_config": SPEC}],
     [{"speculative_config": SPEC | {"disable_by_batch_size": 1}}], "from 2"),
    ("r26_other_ranks", [{"speculative_config": DRAFT | {"draft_tensor_parallel_size": 1}, "tensor_parallel_size": 4}],
     [{"speculative_config": DRAFT | {"draft_tensor_parallel_size": 2}, "tensor_parallel_size": 4}], "expected 1 or 4"),
    ("r26_draft_ranks", [{"speculative_config": SPEC}], [{"speculative_config": DRAFT, "tensor_parallel_size": 4}],
     ("speculative_config.draft_tensor_parallel_size", 4)),
    ("r51_device", [{"speculative_config": SPEC | {"device": "cuda"}}, CPU],
     [{"speculative_config": DRAFT | {"device": "cuda:1"}}, CPU], "runs on cpu"),
    ("r59_threshold", [{"speculative_config": SPEC}],
     [{"speculative_config": TYPICAL}], ("speculative_config.posterior_threshold", 0.09)),
    ("r56_alpha", [{"speculative_config": TYPICAL | {"posterior_alpha": 0.1}}],
     [{"speculative_config": TYPICAL | {"posterior_threshold": 0.25}}], ("speculative_config.posterior_alpha", 0.5)),
    ("r56_alpha", [{"speculative_config": SPEC}],
     [{"speculative_config": TYPICAL | {"posterior_threshold": "x"}}], "between 0 and 1"),
    ("r16_draft_length", [{"speculative_config": SPEC, "=max_model_len": 64}],
     [{"speculative_config": DRAFT, "=max_model_len": 64}], ("speculative_config.max_model_len", 64)),
    ("r16_draft_length", [{"speculative_config": SPEC, "=max_model_len": 64}],
     [{"speculative_config": DRAFT, "=max_model_len": 64}, {"draft": {"max_position_embeddings": 32}}],
     ("speculative_config.max_model_len", 32)),
    ("r16_draft_length", [{"speculative_config": DRAFT | {"max_model_len": 7}}],
     [{"speculative_config": DRAFT | {"max_model_len": "x"}}], "from 1"),
    ("r32_unused", [{"max_loras": 2, "enable_lora": True}],
     [{"max_loras": 2, "lora_dtype": "auto"}], "--max-loras, --lora-dtype"),
    ("n29_negative", [{"max_cpu_loras": 1}], [{"max_cpu_loras": -1}], "--max-cpu-loras -1"),
    ("r36_most_on_the_host", [{"max_cpu_loras": 2, "max_loras": 2}],
     [{"max_cpu_loras": 1, "max_loras": 2}], "--max-loras 2"),
    ("r36_default", [{"max_cpu_loras": 3}], [{"max_loras": 2}], ("max_cpu_loras", 2)),
    ("r36_default", [{"max_cpu_loras": 3}], [{"max_loras": 2, "max_cpu_loras": 0}], ("max_cpu_loras", 2)),
    ("n27_text_model", [{"default_mm_loras": {"image": "x"}}, model(vision_config={})],
     [{"default_mm_loras": {"image": "x"}}, model()], "text only"),
    ("r55_old_text", [{LIMIT: {"image": 16}}], [{LIMIT: "image=16,audio=2"}], (LIMIT, {"image": 16, "audio": 2})),
    ("r55_old_text", [{}], [{LIMIT: "image=1,image=2"}], "given twice"),
    ("r55_negative", [{LIMIT: {"image": 0, "video": {"count": 1}}}], [{LIMIT: {"image": -1}}], "from 0"),
    ("n36_text_only", [{}], [{"language_model_only": True}], (LIMIT, {"image": 0, "audio": 0, "video": 0})),
    ("n37_embeddings", [{LIMIT: {"image": 0}}],
     [{LIMIT: {"image": 0}, "enable_mm_embeds": True}], (LIMIT + ".image", 0)),
    ("n38_object_size", [{"mm_shm_cache_max_object_size_mb": 1, "mm_processor_cache_type": "shm"}],
     [{"mm_shm_cache_max_object_size_mb": 1}], "shm"),
    ("n39_caches", [{"mm_processor_cache_gb": 4.0}, {"host_memory": 8 * GIB}],
     [{"mm_processor_cache_gb": 4.0, "data_parallel_size": 2}, {"host_memory": 8 * GIB}], "3 caches"),
    ("n48_pruning", [{"video_pruning_rate": 0.0}], [{"video_pruning_rate": 1.0}], "below 1"),
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


def test_every_number_is_in_the_table_once_an_effect():
    numbers = {rule.number for rule in RULES}
    wanted = {f"R{i}" for i in range(1, 60)} | {f"N{i}" for i in range(1, 53)}
    assert wanted <= numbers
    assert all(number.startswith("C") for number in numbers - wanted)
    assert len({(rule.number, rule.kind) for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert (rule.check is None) == bool(rule.instead), rule
        assert rule.check is not None or rule.kind != "warning", rule


def test_rules_speak_of_declared_arguments():
    unknown = {name for rule in RULES for name in rule.names} - set(schema().fields)
    assert not unknown


def test_counts():
    counts = {}
    for rule in RULES:
        counts[rule.kind] = counts.get(rule.kind, 0) + 1
    print(f"rules: {counts}, {len({rule.number for rule in RULES})} numbers")
    assert counts["error"] + counts["warning"] + counts["derived"] >= 90


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
         "draft_tensor_parallel_size", "acceptance_method", "posterior_threshold", "disable_by_batch_size"], junk,
    )  # fmt: skip
    given = {"speculative_config": config, LIMIT: {"image": junk}, "additional_config": {"x": junk}}
    given |= {"override_generation_config": {"max_tokens": junk}, "=max_model_len": 512, **BATCH, **KV}
    known = {**CPU, **model(), "config": {"quantization_config": junk, "speculators_config": junk}, "block_bytes": 10}
    for stage in ("arguments", "reference", "platform", "model", "memory", "plugins"):
        list(findings(RULES, stage, facts(given, **known)))


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
        if forced and not asked and case[0] != "n17_offline":
            assert any(isinstance(f, Warn) for f in found), case
