"""Arguments about the model: which one, how long, how precise. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

_TEXT_ONLY = "only text generation is served"


class ModelArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Model and tokenizer."""

    model: Annotated[
        str | None,
        Arg(
            "Model to run: a GGUF file, a directory, or a hub name. Unset: the embedded model.", aliases=("model_tag",)
        ),
    ] = None
    tokenizer: Annotated[str | None, Arg("Directory that the tokenizer comes from. Unset: the model itself.")] = None
    tokenizer_mode: Annotated[
        str,
        Arg(
            "Which tokenizer implementation to use.",
            choices=("auto", "hf", "slow", "mistral", "deepseek_v32", "qwen_vl", "custom"),
            served=("auto", "hf"),
            unserved="only fast tokenizers are available",
        ),
    ] = "auto"
    tokenizer_revision: Annotated[str | None, Arg("Revision of a tokenizer that comes from the hub.")] = None
    served_model_name: Annotated[
        list[str] | None, Arg("Names that the API answers to; the first is reported. Unset: the model as given.")
    ] = None
    dtype: Annotated[
        str,
        Arg(
            "Precision of matrix inputs and dense weights; auto lets the platform decide.",
            choices=("auto", "bfloat16", "float16", "float32", "half", "float"),
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Arg(
            "Context length, prompt plus output. Unset: what the model allows; auto: the most that fits the KV cache.",
            human=True,
            ge=-1,
            words=(("auto", -1),),
        ),
    ] = None
    seed: Annotated[
        int | None, Arg("Seed from which requests without a seed draw theirs; none: from the system.", ge=0)
    ] = 0
    max_logprobs: Annotated[
        int, Arg("Most log probabilities that a request may ask for; -1: the whole vocabulary.", ge=-1)
    ] = 20
    logprobs_mode: Annotated[
        str,
        Arg(
            "Whether log probabilities or logits are reported, before or after processing of the logits.",
            choices=("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"),
            served=("raw_logprobs",),
            unserved="only raw log probabilities are reported",
        ),
    ] = "raw_logprobs"
    quantization: Annotated[
        str | None,
        Arg("Quantization method. Unset: what the checkpoint declares.", short=("q",), plugin="quantization"),
    ] = None
    quantization_config: Annotated[dict[str, Any], Arg("The quantization method's own arguments.")] = {}
    allow_deprecated_quantization: Annotated[
        bool,
        Arg("Permit quantization methods that are marked for removal.", unserved="no method is marked for removal"),
    ] = False
    hf_overrides: Annotated[dict[str, Any], Arg("Values that replace those of the model's configuration.")] = {}
    hf_config_path: Annotated[
        str | None,
        Arg(
            "Take the model's configuration from another directory or hub name.",
            unserved="the configuration comes from the checkpoint itself",
        ),
    ] = None
    hf_token: Annotated[
        str | None,
        Arg(
            "Bearer token for downloads that need one. Unset, or the flag alone: the stored login.",
            words=(("true", None), ("stored", None)),
            bare="stored",
            secret=True,
        ),
    ] = None
    config_format: Annotated[
        str,
        Arg(
            "Format of the model's configuration; auto follows the files.",
            choices=("auto", "hf", "mistral"),
            served=("auto",),
            unserved="the format follows the files",
        ),
    ] = "auto"
    generation_config: Annotated[
        str,
        Arg(
            "Where default sampling parameters come from: auto (the checkpoint), none (the engine's; also written "
            "vllm), or a directory.",
            words=(("vllm", "none"),),
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any], Arg("Default sampling parameters, laid over the generation configuration.")
    ] = {}
    runner: Annotated[
        str,
        Arg(
            "What the model is run for.",
            choices=("auto", "generate", "pooling", "draft"),
            served=("auto", "generate"),
            unserved=_TEXT_ONLY,
        ),
    ] = "auto"
    convert: Annotated[
        str,
        Arg(
            "Turn a generation model into a pooling model for this task.",
            choices=("auto", "none", "embed", "classify"),
            served=("auto", "none"),
            unserved=_TEXT_ONLY,
        ),
    ] = "auto"
    pooler_config: Annotated[
        dict[str, Any] | None, Arg("How a pooling model makes one output of its hidden states.", unserved=_TEXT_ONLY)
    ] = None
    model_impl: Annotated[
        str,
        Arg(
            "Implementation of the model: the engine's own (native, also written vllm), or a wrapped one.",
            choices=("auto", "native", "transformers", "terratorch"),
            words=(("vllm", "native"),),
            served=("auto", "native"),
            unserved="only the engine's own implementations run",
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool, Arg("Allow code that comes with a checkpoint; no architecture served today needs any, so none is run.")
    ] = False
    code_revision: Annotated[
        str | None,
        Arg("Revision of the code that comes with a checkpoint.", unserved="no code from checkpoints is run"),
    ] = None
    skip_tokenizer_init: Annotated[
        bool,
        Arg("Run without a tokenizer: token ids in, token ids out.", unserved="the engine needs the tokenizer"),
    ] = False
    enable_prompt_embeds: Annotated[
        bool,
        Arg(
            "Accept embeddings in place of a prompt's tokens.",
            unserved="prompts are text or token ids",
        ),
    ] = False
    enable_return_routed_experts: Annotated[
        bool,
        Arg("Return which experts each token was sent to.", unserved="outputs do not carry the choice of experts"),
    ] = False
    logits_processors: Annotated[
        list[str] | None,
        Arg("Logits processors to load, by import path.", unserved="logits processors cannot be added"),
    ] = None
    io_processor_plugin: Annotated[
        str | None,
        Arg("Plugin that reads requests and writes outputs of its own kind.", unserved="there is no such plugin kind"),
    ] = None
    renderer_num_workers: Annotated[
        int,
        Arg(
            "Threads that tokenize, render chat templates and prepare media.",
            ge=1,
            unserved="one thread does it",
        ),
    ] = 1
    enforce_eager: Annotated[bool, Arg("Never capture the forward pass: run each layer's own code in every step.")] = (
        False
    )
    disable_sliding_window: Annotated[
        bool,
        Arg(
            "Ignore the model's sliding window and cap the context at its size.", unserved="windows are always honoured"
        ),
    ] = False
    disable_cascade_attn: Annotated[
        bool,
        Arg("Do not share the attention over a common prefix.", unserved="no backend shares it"),
    ] = True
    override_attention_dtype: Annotated[
        str | None,
        Arg("Precision inside attention.", unserved="it follows --dtype"),
    ] = None
    enable_sleep_mode: Annotated[
        bool,
        Arg("Allow the engine to give its memory back and to wake up later.", unserved="the engine never sleeps"),
    ] = False
    allowed_local_media_path: Annotated[
        str,
        Arg("Directory tree from which requests may read media; empty forbids it.", unserved="requests carry text"),
    ] = ""
    allowed_media_domains: Annotated[
        list[str] | None,
        Arg("Host names from which requests may name media.", unserved="requests carry text"),
    ] = None
    revision: Annotated[str | None, Arg("Branch, tag or commit of a model that comes from the hub.")] = None
