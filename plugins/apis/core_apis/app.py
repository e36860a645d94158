"""The ASGI application.

Owns: how routes, middleware and error handlers fit together. Never does: start a server or an engine. Called by:
`core_apis.server.service`, tests, and programs that mount the API in an application of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from core.api.config import CacheConfig, EngineConfig, ModelConfig
from core.api.errors import PluginError
from core.version import __version__
from core_apis import errors
from core_apis.api_routes import ApiRoutes
from core_apis.apis import load_apis
from core_apis.batches.service import batch_service
from core_apis.body import BodyRoom
from core_apis.callers.access import Access, mount, operators
from core_apis.callers.authentication import Authentication
from core_apis.callers.common_limits import common_counts
from core_apis.callers.tenants import Tenants
from core_apis.context import ServingContext
from core_apis.durable.kept_responses import ResponseKeeper
from core_apis.durable.pipeline import DurablePipeline
from core_apis.durable.streams import DurableStreams
from core_apis.energy import with_energy
from core_apis.engine_protocol import ServingEngine
from core_apis.exchange import Exchange
from core_apis.openapi import Operation, document
from core_apis.pipeline import Pipeline
from core_apis.prepare.chat_template import read_template
from core_apis.prepare.helper import ApartPreparation
from core_apis.prepare.prepared import PreparationSettings
from core_apis.prepare.preparer import Preparer
from core_apis.prepare.settings import settings_of
from core_apis.receipts import server_receipts, traffic_recorder
from core_apis.responses.store import ResponseStore
from core_apis.served_adapters import ServedAdapters
from core_apis.served_names import ServedNames
from core_apis.server.drain import DrainGate
from core_apis.server.load_reports import LoadReports
from core_apis.server.middleware import HeadRequests, RequestIds, RootPath, TraceParents, WeightVersions
from core_apis.server.own_middleware import load_middleware
from core_apis.server.turnstile import Turnstile
from core_apis.sessions.directory import session_files
from core_apis.sessions.service import SessionService
from core_apis.tools.making import tool_servers
from core_apis.transfer import with_transfer
from core_apis.watching import Generate, watched
from core_config.served.server_config import ServerConfig
from core_frontend.io.pool import IOPool, io_settings
from core_media.config import media_of
from core_observers.metrics import PREFIX, ServerMetrics

if TYPE_CHECKING:
    from core_apis.observed.tracing import Tracing
    from core_apis.prefill.router import PrefillRouter
    from core_apis.quotes import ServerQuotes
    from core_tokens.tokenizer import Tokenizer


def create_app(
    engine: ServingEngine,
    server_config: ServerConfig,
    model_config: ModelConfig,
    cache_config: CacheConfig | None = None,
    durable: DurableStreams | None = None,
) -> FastAPI:
    """Create the application that serves `engine`. cache_config: reported by /metrics. durable: lets streams and
    responses outlive the server.

    Raises UserError when the chat template, a public prompt or a middleware of `server_config` cannot be used, and
    PluginError when an API cannot.
    """
    app = FastAPI(
        title="core",
        version=__version__,
        docs_url=None,  # routes.docs
        redoc_url=None,
        openapi_url=None,  # routes.docs
    )
    served = _served(server_config, engine.config)
    exchanges = {exchange.kind: exchange for routes in served for exchange in routes.exchanges}
    context = _context(engine, server_config, model_config, cache_config, durable, exchanges)
    app.state.context = context
    if context.batches is not None:
        context.batches.serve(app)
    allowed = operators(server_config)
    access: dict[str, Access] = {}
    operations: dict[str, Operation] = {}
    for routes in served:
        mount(app, routes.router, routes.access, allowed)
        access |= routes.access
        operations |= routes.operations
    paths = list(access)
    make_document = functools.partial(
        document, app, operations, access, keys=bool(server_config.api_keys), guards=bool(server_config.keys)
    )
    app.openapi = functools.cache(make_document)  # type: ignore[method-assign]
    errors.install(app, paths)
    _add_middleware(app, context, [path for path in paths if access[path] == "public"])
    # Built here, so that a middleware that cannot be made aborts the start.
    app.middleware_stack = app.build_middleware_stack()
    return app


def _add_middleware(app: FastAPI, context: ServingContext, open_paths: list[str]) -> None:
    """Add all middleware. The one added last is outermost: refusals by the inner ones carry CORS headers and request ids
    too. open_paths: paths that need no key.
    """
    server = context.server
    engine = context.engine
    if server.keys:
        needs_key = bool(server.api_keys)
        app.add_middleware(Authentication, keys=server.keys, open_paths=open_paths, needs_key=needs_key)
    app.add_middleware(HeadRequests)
    app.add_middleware(LoadReports, stats=lambda: engine.stats)
    if server.enable_request_id_headers:
        app.add_middleware(RequestIds)
    if engine.config.weight_transfer is not None:
        app.add_middleware(WeightVersions, version=lambda: engine.stats.weight_version)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=server.allowed_origins,
        allow_methods=server.allowed_methods,
        allow_headers=server.allowed_headers,
        allow_credentials=server.allow_credentials,
    )
    app.add_middleware(Turnstile)
    if context.tracing is not None:
        app.add_middleware(TraceParents, following=context.tracing.following)
    for own in load_middleware(server.middleware):
        app.add_middleware(own)
    app.add_middleware(DrainGate, drain=context.drain)
    if server.root_path.strip("/"):
        app.add_middleware(RootPath, root_path=server.root_path)


def _served(server: ServerConfig, engine: EngineConfig) -> list[ApiRoutes]:
    """Return the routes of all APIs. Raises PluginError if two APIs have the same path."""
    owners: dict[str, str] = {}
    found: list[ApiRoutes] = []
    for name, api in load_apis(server.apis):
        for routes in api.routes(server, engine):
            for path in routes.access:
                owner = owners.setdefault(path, name)
                if owner != name:
                    raise PluginError(
                        f"api plugin '{name}': brings {path}, which is a path of the API '{owner}'; leave one of them out with "
                        f"--plugins no:{name} or no:{owner}."
                    )
            found.append(routes)
    return found


def _context(
    engine: ServingEngine,
    server: ServerConfig,
    model: ModelConfig,
    cache: CacheConfig | None,
    durable: DurableStreams | None,
    exchanges: Mapping[str, Exchange],
) -> ServingContext:
    tokenizer = engine.tokenizer
    own = read_template(server.chat_template, tokenizer.named_templates)
    settings = _settings(engine, server, model, own)
    io = io_settings(engine.config)
    preparer = Preparer(settings, tokenizer, None if io is None else IOPool(io))
    adapters = preparer.adapters = _adapters(engine, server, preparer.here.names)
    metrics = _metrics(engine, server, model, cache, adapters)
    tracing = _tracing(server, model)
    _count_moves(engine, metrics, model)
    quotes = _quotes(engine, server, metrics, model)
    prefill = None if quotes is None else _prefill(server, quotes, metrics, model)
    generate = _followed(watched(engine, metrics, tracing), engine, quotes, prefill, adapters)
    tenants = _tenants(server, settings, tokenizer)
    files = session_files(server, engine.config, tokenizer)
    caches = engine.config.cache.enable_prefix_caching
    common = common_counts(server)
    if common is not None:
        engine.queue.share_with(common)
    sessions = SessionService(server.limits, engine.control, tenants.name, files, caches=caches, common=common)

    def recovered(seconds: float) -> None:
        metrics.recovery.observe(seconds)
        sessions.renew()

    engine.restarts.on_recovered = recovered
    keeper = None if durable is None else ResponseKeeper(durable.journal, durable.key_digests)
    return ServingContext(
        engine=engine,
        server=server,
        model=model,
        preparer=preparer,
        bodies=BodyRoom(server.limits.max_body_size),
        metrics=metrics,
        responses=ResponseStore(server.limits, keeper=keeper, num_tenants=max(1, len(server.keys))),
        sessions=sessions,
        generate=generate,
        pipeline=Pipeline() if durable is None else DurablePipeline(durable),
        exchanges=exchanges,
        tenants=tenants,
        durable=durable,
        adapters=adapters,
        tracing=tracing,
        receipts=server_receipts(server.receipts, engine, own),
        traffic=traffic_recorder(server, engine, own),
        batches=batch_service(server, engine.config, common),
        quotes=quotes,
        prefill=prefill,
        tools=tool_servers(server.tool_servers),
    )


def _settings(
    engine: ServingEngine, server: ServerConfig, model: ModelConfig, template: str | None
) -> PreparationSettings:
    """Return the settings with which this server prepares requests. template: the operator's own chat template."""
    config = engine.config
    return settings_of(
        model,
        server,
        engine.tokenizer,
        served_names_file=server.served_model_name_file,
        most_prompts=engine.queue.request_limits(with_keys=bool(server.keys)),
        max_num_queued_tokens=engine.queue.max_tokens,
        max_grammar_size=config.structured_outputs.max_grammar_size,
        embedding_size=model.embedding_size,
        pooling=model.pooling,
        pair_template=template,
        apis=server.apis,
        adapters=config.adapters is not None,
        remembers=config.cache.explains != "off",
        media=media_of(config),
        keeps_edges=any(group.kind == "state" for group in config.cache.groups),
    )


def _metrics(
    engine: ServingEngine,
    server: ServerConfig,
    model: ModelConfig,
    cache: CacheConfig | None,
    adapters: ServedAdapters | None,
) -> ServerMetrics:
    return ServerMetrics(
        model.served_names[0],
        lambda: engine.stats,
        cache,
        restarts=engine.restarts.num_restarts,
        vllm_names=server.vllm_metrics,
        hidden_version=server.show_hidden_metrics_for_version,
        buckets=server.custom_histogram_buckets,
        work_of=None if server.step_work is None else server.step_work.of,
        adapters=adapters,
        engines=None if engine.config.data_parallel_size == 1 else lambda: engine.stats_of_engines,
    )


def _followed(
    generate: Generate,
    engine: ServingEngine,
    quotes: ServerQuotes | None,
    prefill: PrefillRouter | None,
    adapters: ServedAdapters | None,
) -> Generate:
    """Return how prompts are generated, with all that follows a request from its start to its end."""
    if quotes is not None:
        generate = with_energy(quotes.followed(generate), engine)
    generate = with_transfer(generate, engine)
    if prefill is not None:
        generate = prefill.followed(generate)
    return generate if adapters is None else adapters.followed(generate)


def _count_moves(engine: ServingEngine, metrics: ServerMetrics, model: ModelConfig) -> None:
    """Have the moves of a group counted; the module of their metrics is imported only if there is a group."""
    if engine.moves is not None:
        from core_observers.families.move_metrics import MoveMetrics

        engine.moves.on_count = MoveMetrics(metrics.registry, PREFIX, model.served_names[0]).count


def _quotes(
    engine: ServingEngine, server: ServerConfig, metrics: ServerMetrics, model: ModelConfig
) -> ServerQuotes | None:
    """Return what quotes requests; its modules are imported only if they are quoted."""
    if not server.quotes:
        return None
    from core_apis.quotes import ServerQuotes
    from core_observers.families.quote_metrics import QuoteMetrics

    return ServerQuotes(engine, QuoteMetrics(metrics.registry, PREFIX, model.served_names[0]))


def _prefill(
    server: ServerConfig, quotes: ServerQuotes, metrics: ServerMetrics, model: ModelConfig
) -> PrefillRouter | None:
    """Return what sends prompts to other servers; its modules are imported only if there are any."""
    if not server.prefill_servers:
        return None
    from core_apis.prefill.router import PrefillRouter
    from core_observers.families.prefill_metrics import PrefillMetrics

    own = PrefillMetrics(metrics.registry, PREFIX, model.served_names[0])
    return PrefillRouter(server.prefill_servers, quotes, own)


def _adapters(engine: ServingEngine, server: ServerConfig, names: ServedNames) -> ServedAdapters | None:
    """Return the adapters that the server answers for; None: it has none. Raises PluginError for a resolver that fails."""
    config = engine.config.adapters
    media = media_of(engine.config)
    of_media = () if media is None else media.adapters.values()
    return None if config is None else ServedAdapters(config, server.adapters, engine.adapters, names, of_media)


def _tenants(server: ServerConfig, settings: PreparationSettings, tokenizer: Tokenizer) -> Tenants:
    """Build the tenants of the server's keys.

    Public prompts are rendered like requests: in a separate process, so that a template that does not end can be
    stopped.
    """
    if not (server.keys and server.public_prompts):
        return Tenants.of(server.keys)
    # Public prompts are read as chats, whether or not the chat API is served.
    settings = msgspec.structs.replace(settings, apis=None)
    with ApartPreparation(settings, tokenizer) as preparation:
        return Tenants.of(server.keys, server.public_prompts, preparation)


def _tracing(server: ServerConfig, model: ModelConfig) -> Tracing | None:
    """Return the sender of trace spans; its module is imported only if tracing is enabled."""
    if server.traces is None:
        return None
    from core_apis.observed.tracing import Tracing

    return Tracing(server.traces, model.served_names[0])
