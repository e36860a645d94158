"""Arguments about plugins and the device they run on. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

from core.args.arg import Arg, ArgumentGroup


class PluginsArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Plugins and device."""

    place: ClassVar[int] = 110

    plugins: Annotated[
        str | None,
        Arg(
            "Comma-separated: NAME (only this one of its kind; other kinds are not restricted), no:NAME (never), ./file.py or "
            "module:object (add). A NAME may have its kind or package in front (KIND.NAME, PACKAGE:NAME), or be a package. "
            "The environment variable CORE_PLUGINS means the same."
        ),
    ] = None
    device: Annotated[
        str, Arg("Platform to run on, such as cpu or cuda:0; auto takes the best that answers.", plugin="platform")
    ] = "auto"
    platform_config: Annotated[dict[str, Any], Arg("The platform's arguments.", aliases=("additional_config",))] = {}
    executor: Annotated[
        str,
        Arg(
            "What computes the steps: torch, or the name of another executor; auto takes the best that serves the model on "
            "the device.",
            plugin="executor",
        ),
    ] = "auto"
    executor_config: Annotated[dict[str, Any], Arg("The executor's own arguments.")] = {}
