"""Arguments about which plugins may be used. Owns: declarations only. Called by: schema."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.args.arg import Arg


class PluginArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Plugins."""

    plugins: Annotated[
        str | None,
        Arg(
            "Comma-separated: NAME (only this one of its kind), no:NAME (never), ./file.py or module:object (add). "
            "The environment variable CORE_PLUGINS means the same.",
        ),
    ] = None
