"""Arguments about which kernels run. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

KERNELS = "--kernels and each provider's own answer choose kernels"
MOE_BACKENDS = (
    *("auto", "triton", "deep_gemm", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl"),
    *("marlin", "aiter"),
)


class KernelKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kernel-config."""

    ir_op_priority: Annotated[dict[str, Any], Arg("As --ir-op-priority.")] = {}
    enable_flashinfer_autotune: Annotated[bool | None, Arg("As --enable-flashinfer-autotune.")] = None
    moe_backend: Annotated[str, Arg("As --moe-backend.", choices=MOE_BACKENDS)] = "auto"


class KernelArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels."""

    kernels: Annotated[
        list[str],
        Arg(
            "Providers of kernels, best first; auto stands for those of the engine and of the platform's package. What none "
            "of them serves runs in plain torch.",
            plugin="kernels",
            commas=True,
        ),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    numerics: Annotated[
        str,
        Arg(
            "reference: operations that run in plain torch compute one row at a time, so that a request's tokens do not "
            "depend on its neighbours, chunks or caches; slow. Native kernels promise it in any case.",
            choices=("fast", "reference"),
        ),
    ] = "fast"
    ir_op_priority: Annotated[
        dict[str, Any],
        Arg("For each operation the implementations to try, in order: --ir-op-priority.OP NAME.", unserved=KERNELS),
    ] = {}
    moe_backend: Annotated[str, Arg("Family of kernels for experts.", choices=MOE_BACKENDS, unserved=KERNELS)] = "auto"
    enable_flashinfer_autotune: Annotated[
        bool | None, Arg("Tune FlashInfer's kernels while warming up.", unserved=KERNELS)
    ] = None
    kernel_config: Annotated[
        dict[str, Any], Arg("Choice and warm-up of kernels.", keys=KernelKeys, unserved=KERNELS)
    ] = {}
