"""Arguments about reading a checkpoint. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class WeightTransferKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --weight-transfer-config."""

    backend: Annotated[
        str,
        Arg("Where new weights come from: files, shared memory, or both.", choices=("file", "shared_memory", "any")),
    ] = "any"
    directory: Annotated[str | None, Arg("Directory that checkpoints must lie below. Unset: anywhere.")] = None


class LoadArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Loading of weights."""

    place: ClassVar[int] = 30

    load_format: Annotated[
        str, Arg("Loader of the checkpoint; auto asks which loader knows the files.", plugin="loader")
    ] = "auto"
    config_format: Annotated[
        str,
        Arg(
            "Form that the model's configuration must have: mistral is params.json, which the loader of that name reads, hf any"
            " other; auto takes what the loader reads.",
            choices=("auto", "hf", "mistral"),
        ),
    ] = "auto"
    model_loader_extra_config: Annotated[dict[str, Any], Arg("The loader's own arguments.")] = {}
    download_dir: Annotated[str | None, Arg("Directory for downloads. Unset: the hub's cache.")] = None
    ignore_patterns: Annotated[
        list[str],
        Arg("Files of a hub repository that are not downloaded, as patterns such as original/**/*.", commas=True),
    ] = msgspec.field(default_factory=lambda: ["original/**/*"])
    hf_endpoint: Annotated[
        str | None, Arg("Address of the hub, for a mirror. Unset: https://huggingface.co.", metavar="URL")
    ] = None
    state_canary: Annotated[
        str | None,
        Arg(
            "Directory for what a model's weights and a probe of it are known to be: the first engine records it, later ones "
            "must agree with it before they take requests. Unset: nothing is compared.",
            metavar="DIR",
        ),
    ] = None
    quarantine_plugins: Annotated[
        bool,
        Arg(
            "Leave out plugins that core plugins doctor has found to change answers or pace, as long as they are installed in "
            "that version and something else does their work. With --state-canary, in whose directory they are listed.",
            since="0.2.0",
        ),
    ] = False
    use_tqdm_on_load: Annotated[bool, Arg("Show progress while weights are loaded.")] = True
    safetensors_load_strategy: Annotated[
        str | None,
        Arg(
            "How safetensors files are read: lazy maps them, eager reads each into memory first, prefetch maps them while a "
            "thread reads ahead into the page cache; torchao, for files of torchao, is the same as unset. Unset: lazy, and "
            "prefetch for files on a network that fit into memory.",
            choices=("lazy", "eager", "prefetch", "torchao"),
        ),
    ] = None
    pt_load_map_location: Annotated[
        str | None,
        Arg(
            "No effect, with a warning: files of torch are read in the host's memory, from where each device gets its part.",
            since="0.2.0",
        ),
    ] = None
    keep_weights: Annotated[
        str | None,
        Arg(
            "Keep the prepared weights in memory that outlives an engine, so that one that dies is replaced without loading "
            "them: by a copy, which takes their size again, or mapped as they lie there, which takes it only until the first "
            "replacement, but in small pages, which are slower. On the CPU.",
            choices=("copy", "map"),
        ),
    ] = None
    prepared_weights: Annotated[
        str | None,
        Arg(
            "Directory in which a model's weights are stored as the kernels read them, so that later starts map them instead "
            "of packing the checkpoint: a file a model, of the model's size, written once after the first start. On the CPU. "
            "Unset: none are stored.",
            metavar="DIR",
            since="0.3.0",
        ),
    ] = None
    keep_kv: Annotated[
        bool,
        Arg(
            "Keep cached KV blocks in memory that outlives an engine, so that the one that replaces it continues earlier "
            "prompts. On the CPU."
        ),
    ] = False
    enable_sleep_mode: Annotated[
        bool,
        Arg(
            "Let the engine sleep: weights and KV cache are given back until it is woken (LLM.sleep, POST /sleep, /wake_up, "
            "/pause, /resume)."
        ),
    ] = False
    weight_transfer_config: Annotated[
        dict[str, Any] | None,
        Arg(
            "Let clients replace weights while the server runs (POST /update_weights and its like, /pause, /resume), and send "
            "adapters in shared memory (/v1/load_lora_adapter). `{}` takes all defaults. Unset: there are no such paths.",
            keys=WeightTransferKeys,
        ),
    ] = None
