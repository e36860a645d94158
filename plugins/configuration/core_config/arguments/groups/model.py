"""Arguments about the model: its name, context length and precision. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

from core.args.arg import Arg, ArgumentGroup


class ModelArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Model and tokenizer."""

    place: ClassVar[int] = 10

    model: Annotated[
        str | None,
        Arg(
            "Model to run: a GGUF file, a directory, a hub name (owner/model, owner/model:Q4_K_M or "
            "owner/model/file.gguf), or a URL such as s3://bucket/model. Unset: the embedded model.",
            aliases=("model_tag",),
        ),
    ] = None
    tokenizer: Annotated[
        str | None, Arg("Directory or file that the tokenizer comes from. Unset: the model itself.")
    ] = None
    tokenizer_mode: Annotated[
        str,
        Arg(
            "Which files a tokenizer is made from: auto and hf take tokenizer.json first; slow the format's own files; mistral "
            "tekken.json or a sentencepiece file; deepseek_v32 those of auto, with the messages of DeepSeek V3.2. Any other "
            "name is a plugin, which encodes texts itself.",
            plugin="tokenizer",
        ),
    ] = "auto"
    tokenizer_config: Annotated[
        dict[str, Any], Arg("Own arguments of a tokenizer plugin: --tokenizer-config.KEY VALUE.", since="0.2.0")
    ] = {}
    skip_tokenizer_init: Annotated[
        bool,
        Arg("No tokenizer: token ids alone come in and go out, and all texts are empty.", aliases=("tokens_only",)),
    ] = False
    allow_control_tokens_in_content: Annotated[
        bool,
        Arg(
            "Control tokens spelled out in messages, tools and documents become control tokens. Unset: they stay text, and "
            "only those that the chat template writes itself control the model."
        ),
    ] = False
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
            "What logprobs and prompt_logprobs are: log-probabilities or logits; raw, as the model computed them, or "
            "processed: behind biases, penalties, masks, processors, temperature and filters. A prompt is not sampled, so "
            "both are raw there.",
            choices=("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"),
        ),
    ] = "raw_logprobs"
    return_sampling_mask: Annotated[
        bool,
        Arg(
            "Outputs carry for each of their tokens the ids that could have been drawn, behind all filters (`sampling_mask`). "
            "Requests above temperature 0 need a top_k of at most 2048.",
            since="0.2.0",
        ),
    ] = False
    enable_return_routed_experts: Annotated[
        bool,
        Arg(
            "Ended outputs carry the experts that each layer chose for each token that was computed (`routed_experts`, "
            "[tokens, layers, top_k]).",
            since="0.2.0",
        ),
    ] = False
    enable_prompt_embeds: Annotated[
        bool,
        Arg(
            "Prompts may be embeddings: {'prompt_embeds': a tensor [tokens, hidden]} of LLM, LLMEngine and AsyncLLM, or "
            "`prompt_embeds` of /v1/completions."
        ),
    ] = False
    logits_processors: Annotated[
        list[str] | None,
        Arg(
            "What may change the logits of requests, in this order: names of plugins, or classes as module:Class or "
            "module.Class, of the engine's own contract or vLLM's.",
            plugin="logits_processor",
        ),
    ] = None
    logits_processor_timeout: Annotated[
        float,
        Arg(
            "Seconds that a call of a logits processor may take, while all others in the batch wait; the requests that asked "
            "for one that hangs then end with an error.",
            gt=0,
        ),
    ] = 5.0
    quantization: Annotated[
        str | None,
        Arg("Quantization method. Unset: what the checkpoint declares.", short=("q",), plugin="quantization"),
    ] = None
    allow_deprecated_quantization: Annotated[
        bool, Arg("No effect: no method is marked for removal.", since="0.2.0")
    ] = False
    quantization_config: Annotated[dict[str, Any], Arg("The quantization method's own arguments.")] = {}
    hf_config_path: Annotated[
        str | None,
        Arg(
            "Directory or hub name whose config.json replaces the checkpoint's own; --hf-overrides are laid over it.",
            metavar="DIR",
            since="0.2.0",
        ),
    ] = None
    hf_overrides: Annotated[dict[str, Any], Arg("Values that replace those of the model's configuration.")] = {}
    hf_token: Annotated[
        str | None,
        Arg(
            "Bearer token for downloads that need one. Unset, or the flag alone: the stored login.",
            words=(("true", None), ("stored", None)),
            bare="stored",
            secret=True,
        ),
    ] = None
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
    model_impl: Annotated[
        str,
        Arg(
            "Whose layers run: the engine's own (core), those of transformers on the engine's attention, cache and "
            "matrices, or auto, which takes the latter where no family and no plugin serves the model.",
            choices=("auto", "core", "transformers"),
            words=(("native", "core"), ("vllm", "core")),
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool,
        Arg("Allow code that comes with a checkpoint; only architectures that transformers does not know need any."),
    ] = False
    enforce_eager: Annotated[bool, Arg("Never capture the forward pass: run each layer's own code in every step.")] = (
        False
    )
    revision: Annotated[str | None, Arg("Branch, tag or commit of a model that comes from the hub.")] = None
