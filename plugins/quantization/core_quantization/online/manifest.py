"""Manifests of the methods that quantize plain checkpoints and open checkpoints that declare them. Torch-free.

One entry point a scheme, and one for the experts alone, all of one class.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.api.errors import UserError
from core.api.reason import Reason
from core.api.specs import Activation
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core.plugin.kinds import normalize
from core_quantization.online.schemes import SCHEMES, Scheme
from core_runtime.specs.checkpoint import CheckpointFacts


class OnlineArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's arguments of a method."""

    activation: Annotated[
        Literal["auto", "none", "bf16", "int8", "int8_row", "fp8_row", "declared"],
        msgspec.Meta(
            description="Precision to which inputs of quantized layers are rounded; int8: integers with a scale for a row and "
            "group; int8_row: one for a row, of weights too, which is faster and less exact; fp8_row: 8-bit floats with a "
            "scale for a row, for e4m3 weights; declared: as a packed checkpoint declares; auto: the scheme's own, or none "
            "when the dtype is not bfloat16."
        ),
    ] = "auto"
    head: Annotated[
        Literal["auto", "same", "int8", "none"],
        msgspec.Meta(
            description="How the embedding and the output head are held: same, as the other layers; int8; none, plain; auto, "
            "int8."
        ),
    ] = "auto"
    ignore: Annotated[
        list[str],
        msgspec.Meta(description="Parts whose name contains one of these stay plain, such as down_proj or layers.0."),
    ] = []


class OnlineManifest:
    """The manifest of one scheme.

    experts: name of the method that rounds the experts of a model alone; empty: the method rounds all layers and has the
        scheme's name.
    """

    CONTRACT = 1

    def __init__(self, scheme: Scheme, experts: str = "") -> None:
        self.scheme = scheme
        self.experts = experts
        self.name = experts or scheme.name

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Describe the plugin: its name, summary and arguments."""
        rounded = "the experts of a plain checkpoint" if self.experts else "a plain checkpoint"
        summary = f"rounds {rounded} while it loads, or opens one that declares it: {self.scheme.summary}"
        return PluginSpec(name=self.name, summary=summary, arguments=OnlineArguments)

    @hookimpl
    def core_supports(self, query: CheckpointFacts) -> list[Reason]:
        """Support plain checkpoints, which are rounded, and checkpoints that declare the method."""
        held = "GGUF file" if query.format == "gguf" else query.quantization
        if held is None or self._is_declared(query):
            return []
        return [Reason("checkpoint", "plain floats", str(held), "leave --quantization out")]

    @hookimpl
    def core_load(self, context: LoadContext) -> Any:
        """Build the method. Raises UserError for an activation that the scheme does not have."""
        from core_quantization.online.method import OnlineMethod
        from core_quantization.scaled.method import scaled_method

        arguments = context.arguments or OnlineArguments()
        if context.facts is not None and self._is_declared(context.facts):
            self.refuse_online(arguments)
            return scaled_method(context, arguments.activation)
        if self.experts:
            self._need_experts(context)
        head = self._head(arguments.head)
        activations = {self.scheme.name: self._activation(arguments.activation, context)}
        if head is not None and head.name not in activations:
            activations[head.name] = _default(head, context)
        roles = ("experts",) if self.experts else None
        return OnlineMethod(context.manifest, self.scheme, head, activations, arguments.ignore, roles)

    def _is_declared(self, facts: CheckpointFacts) -> bool:
        """Whether the checkpoint declares this scheme, under any of its names."""
        words = (self.name,) if self.experts else (self.name, *self.scheme.declared_as)
        return facts.quantization is not None and normalize(facts.quantization) in words

    def refuse_online(self, arguments: OnlineArguments) -> None:
        """Raise UserError for arguments about rounding, given for a checkpoint that is packed already."""
        for name, value, usual in (("head", arguments.head, "auto"), ("ignore", arguments.ignore, [])):
            if value != usual:
                raise UserError(
                    f"--quantization-config.{name} {value}: the checkpoint is packed already ({self.scheme.name}), its tensors "
                    "say which layers are plain; leave the argument out."
                )

    def _need_experts(self, context: LoadContext) -> None:
        """Raise UserError for a model without experts. The names of tensors are canonical here, whatever the family."""
        tensors = context.manifest.tensors if context.manifest is not None else {}
        if tensors and not any(".experts." in name for name in tensors):
            raise UserError(
                f"--quantization {self.name}: the model has no experts to round; choose --quantization {self.scheme.name}, "
                "which rounds all layers."
            )

    def _head(self, asked: str) -> Scheme | None:
        """Return the scheme of the embedding and the output head; None: they stay plain."""
        if self.experts and asked not in ("auto", "none"):
            raise UserError(
                f"--quantization-config.head {asked}: {self.name} rounds the experts alone; choose --quantization "
                f"{self.scheme.name}, or leave the argument out."
            )
        if self.experts or asked == "none":
            return None
        names = {"auto": self.scheme.head, "same": self.scheme.name}
        return SCHEMES[names.get(asked, asked)]

    def _activation(self, asked: str, context: LoadContext) -> Activation:
        if asked == "auto":
            return _default(self.scheme, context)
        for offered in self.scheme.activations:
            if offered == asked:
                return offered
        offers = " or ".join(self.scheme.activations)
        raise UserError(
            f"--quantization-config.activation {asked}: quantization '{self.scheme.name}' has no such inputs; choose {offers}."
        )


def _default(scheme: Scheme, context: LoadContext) -> Activation:
    """Return the scheme's own activation where the device is faster with it, else `none`. It also decides on the form
    of the weights.
    """
    own = scheme.activations[0]
    return own if context.dtype == "bfloat16" and own in context.roundings else "none"


INT8 = OnlineManifest(SCHEMES["int8"])
EXPERTS_INT8 = OnlineManifest(SCHEMES["int8"], experts="experts_int8")
FP8 = OnlineManifest(SCHEMES["fp8"])
NF4 = OnlineManifest(SCHEMES["nf4"])
FP4 = OnlineManifest(SCHEMES["fp4"])
MXFP4 = OnlineManifest(SCHEMES["mxfp4"])
MXFP6 = OnlineManifest(SCHEMES["mxfp6"])
NVFP4 = OnlineManifest(SCHEMES["nvfp4"])
