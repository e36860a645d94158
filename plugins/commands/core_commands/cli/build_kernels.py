"""`core build-kernels [PLATFORM]`: compile a platform's native kernels again.

Owns: the look-up of the build function that a platform declares as its capability `build`. Never does: compile.
Called by: the frame.
"""

from __future__ import annotations

import importlib

from core.api.errors import PluginError, UserError
from core.args.show import Section, show
from core.commands.words import take_help
from core.plugin.registry import PluginRegistry


def build_kernels(words: list[str]) -> int:
    """Build for the named platform, or for every platform that declares a build; prints the compiler's output."""
    if take_help(words) is not None:
        row = ("PLATFORM", "Only this one. Default: every platform with native kernels.")
        show("core build-kernels [PLATFORM]", "Compile native kernels again.", [Section("Arguments", (row,))])
        return 0
    if len(words) > 1:
        raise UserError(f"core build-kernels {words[1]}: unexpected argument; name one platform.")
    registry = PluginRegistry()
    if words:
        manifests = [registry.get("platform", words[0])]
    else:
        manifests = [found for _, found in registry.candidates("platform") if not isinstance(found, str)]
    targets: dict[str, str] = {}
    for manifest in manifests:
        build = manifest.spec.capabilities.get("build")
        if build:
            targets[manifest.row.name] = str(build)
    if not targets:
        raise UserError(
            f"core build-kernels: {' '.join(words) or 'no installed platform'} has no native kernels to build."
        )
    for name, target in targets.items():
        module, _, attribute = target.partition(":")
        try:
            build = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise PluginError(f"platform plugin '{name}': its build function {target} is missing: {error}.") from error
        print(build())
    return 0
