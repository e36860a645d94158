"""The ASGI application of a server with several models.

Owns: its own routes, and which model each other request is sent to. Never does: answer for a model. Called by:
`core_commands.several.launch`, tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from types import SimpleNamespace
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware

from core.api.errors import RequestError, nearest
from core.version import __version__
from core_apis import errors
from core_apis.body import BodyRoom, json_response
from core_apis.callers.access import operators
from core_apis.callers.authentication import Authentication
from core_apis.callers.tenant import Tenant
from core_apis.routes.page import FILES, HEADERS, page_answer
from core_apis.server.drain import Drain, DrainGate
from core_apis.server.middleware import OPEN, HeadRequests, RequestIds, RootPath
from core_apis.server.own_middleware import load_middleware
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.several.cards import SeveralList, card, health
from core_commands.several.entries import ModelEntry
from core_commands.several.figures import joined, own_figures
from core_commands.several.forwarding import Forwarded
from core_commands.several.keeper import Keeper
from core_commands.several.naming import PARAMETER, asked, seconds_of
from core_config.served.server_config import ServerConfig
from core_frontend.queue.limit import QueueLimit

PUBLIC = (
    "/",
    "/page/{name}",
    "/several/{name}",
    "/models/{name:path}/",
    "/models/{name:path}/page/{file}",
    *OPEN,
)
"""Paths that need no key."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NOT_SENT_ON = ("/sleep", "/wake_up")
METRICS_S = 1.5


@dataclass(slots=True)
class SeveralModels:
    """What the routes share.

    entries: the models by their names and those of their adapters. adapters: of names that several models have, these models.
    server: settings of the address. places: requests that wait for their model, by API key.
    """

    entries: Mapping[str, ModelEntry]
    adapters: Mapping[str, list[str]]
    keeper: Keeper
    server: ServerConfig
    bodies: BodyRoom
    drain: Drain
    created: int
    places: QueueLimit

    def entry(self, name: str) -> ModelEntry:
        """Return the model of that name. Raises RequestError (404, or 400 where several models have it)."""
        found = self.entries.get(name)
        if found is None and name in self.adapters:
            owners = self.adapters[name]
            shown = " and ".join(f"'{each}'" for each in owners)
            raise RequestError(
                f"'{name}' is an adapter of {shown}; ask for it by the path of one of them: /models/{owners[0]}/v1/...",
                code="model_ambiguous",
                param="model",
            )
        if found is None:
            known = ", ".join(f"'{each}'" for each in self.entries)
            raise RequestError(
                f"There is no model '{name[:200]}' here; there are {known}.{nearest(name, self.entries)}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return found


def create_app(
    entries: list[ModelEntry], keeper: Keeper, server: ServerConfig, places: QueueLimit | None = None
) -> FastAPI:
    """Create the application that offers all models. places: limits of each key; None: there are none.

    Raises UserError for a middleware that cannot be used.
    """
    app = FastAPI(title="core", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    named, adapters = by_name(entries)
    several = SeveralModels(
        named,
        adapters,
        keeper,
        server,
        BodyRoom(server.limits.max_body_size),
        Drain(),
        int(time.time()),
        QueueLimit(0, 0) if places is None else places,
    )
    app.state.several = several
    app.state.context = SimpleNamespace(server=server)  # what handlers of errors read
    app.include_router(router)
    errors.install(app, [])
    if server.keys:
        app.add_middleware(Authentication, keys=server.keys, open_paths=PUBLIC, needs_key=bool(server.api_keys))
    app.add_middleware(HeadRequests)
    if server.enable_request_id_headers:
        app.add_middleware(RequestIds)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=server.allowed_origins,
        allow_methods=server.allowed_methods,
        allow_headers=server.allowed_headers,
        allow_credentials=server.allow_credentials,
    )
    for own in load_middleware(server.middleware):
        app.add_middleware(own)
    app.add_middleware(DrainGate, drain=several.drain)
    if server.root_path.strip("/"):
        app.add_middleware(RootPath, root_path=server.root_path)
    app.middleware_stack = app.build_middleware_stack()
    return app


router = APIRouter()


def by_name(entries: list[ModelEntry]) -> tuple[dict[str, ModelEntry], dict[str, list[str]]]:
    """Return the models by all names that mean one of them, and the models of those adapters that several have."""
    named = {name: entry for entry in entries for name in entry.names}
    owners: dict[str, list[ModelEntry]] = {}
    for entry in entries:
        for name in entry.adapters:
            if name not in named:
                owners.setdefault(name, []).append(entry)
    named |= {name: each[0] for name, each in owners.items() if len(each) == 1}
    return named, {name: [entry.name for entry in each] for name, each in owners.items() if len(each) > 1}


def several_of(request: Request) -> SeveralModels:
    """Return what the routes share."""
    several: SeveralModels = request.app.state.several
    return several


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """List all names, with state, bytes and queue of their models."""
    several = several_of(request)
    seats = several.keeper.turns.seats
    cards = [card(entry, seats[entry.name], name, several.created) for name, entry in several.entries.items()]
    turns = several.keeper.turns
    return json_response(SeveralList(cards, turns.budget, turns.used))


@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> Response:
    """Return one name."""
    several = several_of(request)
    entry = several.entry(name)
    return json_response(card(entry, several.keeper.turns.seats[entry.name], name, several.created))


@router.get("/health")
@router.get("/ping")
@router.get("/ready")
@router.get("/readyz")
@router.get("/live")
async def tell_health(request: Request) -> Response:
    """Return 200 while any model can answer, and requests are taken."""
    several = several_of(request)
    several.drain.check()
    found = health(several.keeper.turns)
    answer = json_response(found)
    answer.status_code = 200 if found.status == "ok" else 503
    return answer


@router.get("/version")
async def version() -> Response:
    """Return the version."""
    return json_response({"version": __version__})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics of all models that have a process, and those about them."""
    keeper = several_of(request).keeper
    running = [child for child in keeper.children.values() if child.is_running]

    async def text_of(endpoint: HttpEndpoint) -> str:
        try:
            async with asyncio.timeout(METRICS_S), endpoint.ask("GET", "/metrics") as answer:
                return (await whole(answer)).decode()
        except (TimeoutError, EndpointError):
            return ""  # it starts, or ends

    texts = await asyncio.gather(*(text_of(child.endpoint) for child in running))
    return Response(joined([own_figures(keeper), *texts]), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/")
async def index() -> Response:
    """Return the page about the models, which is the same for everybody."""
    return _own_file("several.html", "text/html")


@router.get("/several/{name}")
async def own_file(name: str) -> Response:
    """Return a file of that page."""
    kinds = {"several.js": "text/javascript", "several.css": "text/css"}
    if name not in kinds:
        return Response(status_code=404, headers=HEADERS)
    return _own_file(name, kinds[name])


@router.get("/models/{name:path}/page/{file}")
async def page_file(request: Request, file: str) -> Response:
    """Return a file of a model's page."""
    return page_answer(request, file, FILES.get(file))


@router.get("/models/{name:path}/")
async def page(request: Request, name: str) -> Response:
    """Return a model's page."""
    several_of(request).entry(name)
    return page_answer(request, "index.html", "text/html")


@router.post("/models/{name:path}/load")
async def load(request: Request, name: str, keep_alive: str | None = None) -> Response:
    """Wake a model, for the operator. keep_alive: seconds for which it stays awake without requests."""
    several = _of_operator(request)
    entry = several.entry(name)
    await several.keeper.load(entry.name, seconds_of(keep_alive))
    return json_response(card(entry, several.keeper.turns.seats[entry.name], name, several.created))


@router.post("/models/{name:path}/unload")
async def unload(request: Request, name: str) -> Response:
    """Put a model to sleep as soon as nothing uses it, for the operator."""
    several = _of_operator(request)
    entry = several.entry(name)
    await several.keeper.unload(entry.name)
    return json_response(card(entry, several.keeper.turns.seats[entry.name], name, several.created))


@router.api_route("/models/{rest:path}", methods=list(METHODS))
async def of_named(request: Request, rest: str) -> Response:
    """Send a request on to the model in its path: /models/NAME/v1/chat/completions."""
    several = several_of(request)
    for name, entry in sorted(several.entries.items(), key=lambda pair: -len(pair[0])):
        if rest.startswith(f"{name}/"):
            return await _sent_on(request, "/" + rest.removeprefix(f"{name}/"), entry)
    raise RequestError(
        f"/models/{rest[:200]} begins with no model's name; expected /models/NAME/PATH, see /v1/models.",
        status=404,
        code="model_not_found",
    )


@router.api_route("/{path:path}", methods=list(METHODS))
async def of_model(request: Request, path: str) -> Response:
    """Send a request on to the model that its body, its query or its header X-Model names."""
    return await _sent_on(request, f"/{path}", None)


async def _sent_on(request: Request, path: str, entry: ModelEntry | None) -> Response:
    """Send a request on. path: at the model's server. entry: its model; None: the request says which."""
    several = several_of(request)
    tenant: Tenant = request.scope.get("state", {}).get("api_key")
    several.drain.check()
    if path in NOT_SENT_ON:
        raise RequestError(
            f"{path} is for a server with one model; here POST /models/NAME/unload and /models/NAME/load do that.",
            status=400,
            code="several_models",
        )
    with ExitStack() as reserved:
        room = reserved.enter_context(several.bodies.body())
        async for part in request.stream():
            room.add(part)
        wanted = await asked(request, room.pieces)
        room.free()
        if entry is None:
            entry = _entry(several, wanted.name, path)
        # Requests that name their model are those that compute, which the limits of a key are about.
        place = several.places.arriving(tenant) if wanted.is_work else nullcontext()
        # A request may wait for its model, so its body counts until it is sent on.
        held = reserved.pop_all()
    query = "&".join(
        f"{quote(key)}={quote(value)}" for key, value in request.query_params.multi_items() if key != PARAMETER
    )
    target = quote(path) + (f"?{query}" if query else "")
    return Forwarded(several.keeper, request, entry.name, target, wanted.body, wanted.keep_alive, held, place)


def _entry(several: SeveralModels, name: str | None, path: str) -> ModelEntry:
    """Return the model of a request. Raises RequestError."""
    if name is not None:
        return several.entry(name)
    if len(several.keeper.turns.seats) == 1:
        return next(iter(several.entries.values()))
    known = ", ".join(f"'{each}'" for each in several.entries)
    raise RequestError(
        f"{path[:200]}: there are several models, {known}; name one in the body (`model`), in the query (?model=NAME), in "
        "the header X-Model, or in the path: /models/NAME/...",
        code="model_missing",
        param="model",
    )


def _of_operator(request: Request) -> SeveralModels:
    """Return what the routes share, for the operator. Raises RequestError (403)."""
    several = several_of(request)
    if request.scope.get("state", {}).get("api_key") not in operators(several.server):
        raise RequestError(
            f"{request.url.path[:100]} is for the server's operator; expected one of the keys of --admin-api-key.",
            status=403,
            code="operator_only",
        )
    return several


def _own_file(name: str, kind: str) -> Response:
    body = files("core_commands.several").joinpath("page", name).read_bytes()
    return Response(body, media_type=f"{kind}; charset=utf-8", headers=HEADERS)
