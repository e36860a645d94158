"""The models of a server.

Owns: asking for them, and the choice of one. Never does: know models. Called by: the commands that ask a server.
"""

from __future__ import annotations

import msgspec

from core.api.errors import UserError, nearest
from core.client.endpoint import Endpoint, EndpointError, whole
from core.client.refusal import refusal


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def served_names(endpoint: Endpoint) -> list[str]:
    """The models of a server. Raises EndpointError."""
    async with endpoint.ask("GET", "/v1/models") as answer:
        if answer.status != 200:
            raise EndpointError(f"{endpoint.name}: {await refusal(answer)}")
        text = await whole(answer)
    try:
        return [model.id for model in msgspec.json.decode(text, type=_Models).data]
    except msgspec.DecodeError:
        raise EndpointError(f"{endpoint.name}: what it answers to /v1/models is no list of models.") from None


def chosen_name(wanted: str | None, names: list[str]) -> str:
    """The wanted name, or the first one. Raises UserError when the server has none such."""
    if wanted is None and names:
        return names[0]
    if wanted is None:
        raise UserError("The server names no model; say which one.")
    if names and wanted not in names:
        raise UserError(
            f"The model '{wanted}' is not there; the server has {', '.join(names[:20])}.{nearest(wanted, names)}"
        )
    return wanted
