"""Manifest of the attention backend `gated_states`."""

from core.api.reason import Reason
from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Layers with a state only, and one op."""
    return PluginSpec(
        name="gated_states",
        summary="gated linear attention: a matrix a head as the state",
        capabilities={"layer_kinds": ["state"], "state_ops": ["gated_linear"]},
    )


@hookimpl
def core_supports(query):
    """A matrix of that size would not be a small state any more."""
    rows = query.spec.sizes["key"]
    return [Reason("key", "at most 256", str(rows))] if rows > 256 else []


@hookimpl
def core_numerics():
    """Grows when results change."""
    return "gated-states-1"


@hookimpl
def core_load(context):
    """Build the backend."""
    from core_state_gated.backend import GatedStates

    return GatedStates()
