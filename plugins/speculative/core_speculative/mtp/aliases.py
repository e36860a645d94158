"""Names of `mtp` by model, as used by other programs.

Owns: these names. Never does: describe a draft. Called by: discovery, through entry points.
"""

from __future__ import annotations

from typing import Final

from core.plugin.hookspecs import PluginSpec, hookimpl


class Alias:
    """Manifest of another name for `mtp`: the layer's layout follows from the model."""

    CONTRACT = 1

    def __init__(self, name: str) -> None:
        self._name = name

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Describe the plugin: an alias of `mtp`."""
        return PluginSpec(name=self._name, summary="another name for mtp", alias_of="mtp")


DEEPSEEK: Final = Alias("deepseek_mtp")
GLM4_MOE: Final = Alias("glm4_moe_mtp")
GLM4_MOE_LITE: Final = Alias("glm4_moe_lite_mtp")
QWEN3_NEXT: Final = Alias("qwen3_next_mtp")
QWEN3_5: Final = Alias("qwen3_5_mtp")
EXAONE_MOE: Final = Alias("exaone_moe_mtp")
MIMO: Final = Alias("mimo_mtp")
ERNIE: Final = Alias("ernie_mtp")
LONGCAT: Final = Alias("longcat_flash_mtp")
PANGU: Final = Alias("pangu_ultra_moe_mtp")
MIMO_V2: Final = Alias("mimo_v2_mtp")
HUNYUAN: Final = Alias("hy_v3_mtp")
STEP: Final = Alias("step3p5_mtp")
