"""Arguments about the choice of kernels. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class KernelArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Kernels."""

    place: ClassVar[int] = 70

    kernels: Annotated[
        list[str],
        Arg(
            "Providers of kernels, best first; auto stands for those of the engine and of the platform's package. What none "
            "of them serves runs in plain torch.",
            plugin="kernels",
            commas=True,
        ),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    kernels_config: Annotated[
        dict[str, Any], Arg("Kernel providers' own arguments: --kernels-config.NAME.KEY VALUE.")
    ] = {}
    ir_op_priority: Annotated[
        dict[str, Any],
        Arg(
            "For single operations, other providers first: --ir-op-priority.OPERATION A,B. The others follow in the order of "
            "--kernels; torch is the reference. `core kernels list` has the names."
        ),
    ] = {}
    batch_invariant: Annotated[
        bool,
        Arg(
            "A request's bits do not depend on the batch that it is computed in: auto chooses only kernels and attention "
            "backends that declare so, and it is an error where others are needed or named. Without it, libraries compute "
            "large products on a GPU. On a processor the native kernels keep this anyway."
        ),
    ] = False
    numerics: Annotated[
        str,
        Arg(
            "reference: operations that run in plain torch compute one row at a time, so that a request's tokens do not "
            "depend on its neighbours, chunks or caches; slow. Native kernels promise it in any case.",
            choices=("fast", "reference"),
        ),
    ] = "fast"
