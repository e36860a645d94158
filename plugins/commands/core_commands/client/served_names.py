"""The list of a server's models.

Owns: the request for the list, and the choice of one model. Never does: know models. Called by: the commands that ask a
server.
"""

from __future__ import annotations

import msgspec

from core.api.errors import UserError, nearest
from core_commands.client.endpoint import Endpoint, EndpointError, whole
from core_commands.client.refusal import refusal

UNKNOWN_PATH = (404, 405, 501)
"""Status codes for a path that a server does not support."""


class NoListError(EndpointError):
    """Raised when the server answers, but has no list of models."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def served_name(endpoint: Endpoint, wanted: str | None) -> str:
    """Return the name of the model to use: the wanted one, or the server's first.

    A server without a list is assumed to have the wanted one. Raises UserError when the list does not contain it,
    EndpointError when there is no list to choose from.
    """
    try:
        names = await served_names(endpoint)
    except NoListError as error:
        if wanted is None:
            raise NoListError(f"{error} Name the model with --model-name.") from None
        return wanted
    return chosen_name(wanted, names)


async def served_names(endpoint: Endpoint) -> list[str]:
    """Return the models of a server. Raises EndpointError."""
    async with endpoint.ask("GET", "/v1/models") as answer:
        if answer.status in UNKNOWN_PATH:
            raise NoListError(f"{endpoint.name}: has no list of models at /v1/models (status {answer.status}).")
        if answer.status != 200:
            raise EndpointError(f"{endpoint.name}: {await refusal(answer)}")
        text = await whole(answer)
    try:
        return [model.id for model in msgspec.json.decode(text, type=_Models).data]
    except msgspec.DecodeError:
        raise NoListError(f"{endpoint.name}: what it answers to /v1/models is no list of models.") from None


def chosen_name(wanted: str | None, names: list[str]) -> str:
    """Return the wanted name, or the first one. Raises UserError when the server does not have it."""
    if wanted is None and names:
        return names[0]
    if wanted is None:
        raise UserError("The server names no model; say which one with --model-name.")
    if names and wanted not in names:
        raise UserError(
            f"The model '{wanted}' is not there; the server has {', '.join(names[:20])}.{nearest(wanted, names)}"
        )
    return wanted
