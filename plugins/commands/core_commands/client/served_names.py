"""The models of a server.

Owns: asking for them, and the choice of one. Never does: know models. Called by: the commands that ask a server.
"""

from __future__ import annotations

import msgspec

from core.api.errors import UserError, nearest
from core_commands.client.endpoint import Endpoint, EndpointError, whole
from core_commands.client.refusal import refusal

UNKNOWN_PATH = (404, 405, 501)
"""What servers answer at a path that they do not serve."""


class NoListError(EndpointError):
    """The server answers, but has no list of its models."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def served_name(endpoint: Endpoint, wanted: str | None) -> str:
    """The name of the model to ask for: the wanted one, or the server's first.

    A server without a list is believed to have the wanted one.
    Raises UserError when the list has none such, EndpointError when there is no list to choose from.
    """
    try:
        names = await served_names(endpoint)
    except NoListError as error:
        if wanted is None:
            raise NoListError(f"{error} Name the model with --model-name.") from None
        return wanted
    return chosen_name(wanted, names)


async def served_names(endpoint: Endpoint) -> list[str]:
    """The models of a server. Raises EndpointError."""
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
    """The wanted name, or the first one. Raises UserError when the server has none such."""
    if wanted is None and names:
        return names[0]
    if wanted is None:
        raise UserError("The server names no model; say which one with --model-name.")
    if names and wanted not in names:
        raise UserError(
            f"The model '{wanted}' is not there; the server has {', '.join(names[:20])}.{nearest(wanted, names)}"
        )
    return wanted
