"""Arguments about LoRA adapters. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

LORA = "LoRA adapters are not available"


class LoraArgs(msgspec.Struct, frozen=True, kw_only=True):
    """LoRA adapters."""

    enable_lora: Annotated[bool, Arg("Serve LoRA adapters.", unserved=LORA)] = False
    max_loras: Annotated[int, Arg("Most different adapters in one batch.", ge=1, unserved=LORA)] = 1
    max_lora_rank: Annotated[
        int, Arg("Largest rank of an adapter.", choices=(1, 8, 16, 32, 64, 128, 256, 320, 512), unserved=LORA)
    ] = 16
    max_cpu_loras: Annotated[
        int | None, Arg("Adapters kept in host memory. Unset: as --max-loras.", ge=1, unserved=LORA)
    ] = None
    lora_dtype: Annotated[
        str,
        Arg(
            "Precision of adapters; auto follows the model.",
            choices=("auto", "bfloat16", "float16", "float32"),
            unserved=LORA,
        ),
    ] = "auto"
    lora_target_modules: Annotated[
        list[str] | None, Arg("Adapt only modules whose name ends so.", commas=True, unserved=LORA)
    ] = None
    fully_sharded_loras: Annotated[bool, Arg("Both halves of an adapter are split over the ranks.", unserved=LORA)] = (
        False
    )
    default_mm_loras: Annotated[
        dict[str, Any] | None, Arg("Adapter that each kind of media switches on.", unserved=LORA)
    ] = None
    enable_tower_connector_lora: Annotated[
        bool, Arg("Adapters may change the media encoder and its connector.", unserved=LORA)
    ] = False
    specialize_active_lora: Annotated[
        bool, Arg("Capture the forward pass for each power of two of active adapters.", unserved=LORA)
    ] = False
