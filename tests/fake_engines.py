"""Engines of tests on a double of a device, in place of the processor: `pytest --fake-device gpu`.

Owns: which engines change over, and the arguments that do it. Never does: change what a test asserts.
Called by: conftest, where the option is given.

An engine keeps the processor where its arguments ask for what no double has (a platform of its own, its arguments, native
kernels, other types than float32), and with the embedded model, for which a double is too slow.
"""

from collections.abc import Mapping
from typing import Any

from core.args.arg import Given
from core_config import resolve
from core_config.arguments.sources import Merged, merge
from tests.executor.test_doubles import double

KINDS = {"gpu": "watched", "offload": "watched", "graph": "graph", "late": "late"}
"""Of doubles, as the option names them, and as their platform does."""
OFFLOAD = {"offload_group_size": 1}
"""Arguments of a GPU whose blocks all lie in host memory."""
OF_PROCESSORS = ("numerics", "kernels")
"""Arguments about the processor's own kernels."""
FLOATS = ("float32", "float", "auto", None)


def use_doubles(kind: str) -> None:
    """From now on, engines that can run on a double of this kind do."""
    backends = ("full=double_attention", "sliding=double_attention", "latent=torch_sdpa", "state=torch_sdpa")
    fixed = double(KINDS[kind]) | {"attention_backend": ",".join(backends)}
    if kind == "offload":
        fixed |= OFFLOAD

    def merged(explicit: Mapping[str, Any], environ: Mapping[str, str]) -> Merged:
        values = {name: given.value if isinstance(given, Given) else given for name, given in explicit.items()}
        return merge(dict(explicit) | replaced(values, fixed), environ)

    resolve.merge = merged


def replaced(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an engine that change; none where it stays on the processor."""
    given = {name for name, value in values.items() if value is not None}
    if values.get("device", "auto") not in ("auto", "cpu") or given.intersection(OF_PROCESSORS):
        return {}
    if not values.get("model") or values.get("dtype") not in FLOATS or "cpu_native" in str(values.get("plugins")):
        return {}
    if set(values.get("platform_config") or ()) - {"threads"}:  # a double has one thread
        return {}
    plugins = [str(values["plugins"])] if values.get("plugins") else []
    changed = {**fixed, "plugins": ",".join([*plugins, str(fixed["plugins"])]), "dtype": "float32"}
    if values.get("model_impl") == "transformers":  # these layers read their weights on the device
        changed = {name: value for name, value in changed.items() if name not in OFFLOAD}
    return changed
