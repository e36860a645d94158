"""Arguments about adapters (LoRA). Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

from core.args.arg import Arg, ArgumentGroup

DTYPES = ("auto", "bfloat16", "float16", "float32")
NO_EFFECT = ("fully_sharded_loras", "specialize_active_lora", "enable_mixed_moe_lora_format", "enable_moe_shared_loras")
"""Switches that change nothing here."""


class LoraArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Adapters (LoRA)."""

    place: ClassVar[int] = 72

    enable_lora: Annotated[bool, Arg("Serve adapters of the model, each under a name of its own.", since="0.2.0")] = (
        False
    )
    lora_modules: Annotated[
        list[str] | None,
        Arg(
            'Adapters that are read at the start: NAME=PATH, or JSON: {"name": ..., "path": ...}, or a list of these. A '
            "request uses one by naming it as its model.",
            since="0.2.0",
        ),
    ] = None
    max_loras: Annotated[int, Arg("Different adapters that may be computed in one step.", ge=1, since="0.2.0")] = 1
    max_cpu_loras: Annotated[
        int | None,
        Arg(
            "Adapters that are kept in memory; others are read from their files when a request needs them. Unset, or 0: as "
            "many as --max-loras, or as --lora-modules names if that is more.",
            ge=0,
            since="0.2.0",
        ),
    ] = None
    max_lora_rank: Annotated[int, Arg("Largest rank of an adapter.", ge=1, le=512, since="0.2.0")] = 16
    lora_dtype: Annotated[
        str, Arg("Precision of the adapters' matrices. auto: that of the model.", choices=DTYPES, since="0.2.0")
    ] = "auto"
    lora_target_modules: Annotated[
        list[str] | None,
        Arg("The only modules that adapters may change, such as q_proj. Unset: all.", commas=True, since="0.2.0"),
    ] = None
    qlora_adapter_name_or_path: Annotated[
        str | None, Arg("Path of an adapter that every request uses which names the model itself.", since="0.2.0")
    ] = None
    default_mm_loras: Annotated[
        dict[str, Any],
        Arg(
            'Adapters of prompts with media of requests that name the model itself: {"image": PATH}. Each is also '
            "served under the name of its modality.",
            since="0.2.0",
        ),
    ] = {}
    enable_tower_connector_lora: Annotated[
        bool,
        Arg(
            "Take adapters that change the tower of pictures, sounds or videos and its connector, too: linear layers, by A "
            "and B.",
            since="0.2.0",
        ),
    ] = False
    fully_sharded_loras: Annotated[
        bool, Arg("No effect: ranks divide the matrices of adapters as they divide those of the model.", since="0.2.0")
    ] = False
    specialize_active_lora: Annotated[
        bool,
        Arg(
            "No effect: a recording serves any number of adapters, and steps without one have their own.", since="0.2.0"
        ),
    ] = False
    max_lora_cls_labels: Annotated[
        int | None, Arg("No effect: an adapter's head of classes has as many as the model.", ge=1, since="0.2.0")
    ] = None
    enable_mixed_moe_lora_format: Annotated[
        bool, Arg("No effect: both forms of adapted experts are read.", since="0.2.0")
    ] = False
    enable_moe_shared_loras: Annotated[bool, Arg("No effect: matrices that experts share are read.", since="0.2.0")] = (
        False
    )


class LoraServingArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Adapters of a server."""

    place: ClassVar[int] = 145
    for_servers: ClassVar[bool] = True

    lora_directory: Annotated[
        str | None,
        Arg(
            "Directory with a folder for each adapter. A request that names a folder has it loaded; and paths of "
            "/v1/load_lora_adapter lie below it.",
            since="0.2.0",
        ),
    ] = None
    lora_resolvers: Annotated[
        list[str] | None,
        Arg(
            "Plugins that find an adapter by a name that the server does not know, in this order. directory: a folder of "
            "--lora-directory; hub: OWNER/NAME at the hub, which lets clients have files downloaded. Unset: directory, if "
            "--lora-directory is given.",
            commas=True,
            plugin="resolver",
            since="0.2.0",
        ),
    ] = None
    lora_resolver_timeout: Annotated[
        float, Arg("Seconds that the search for a name may take.", gt=0, since="0.2.0")
    ] = 30.0
    allow_runtime_lora_updating: Annotated[
        bool,
        Arg(
            "Serve /v1/load_lora_adapter and /v1/unload_lora_adapter, for the operator; needs --lora-directory for paths, "
            "--weight-transfer-config for shared memory.",
            since="0.2.0",
        ),
    ] = False
