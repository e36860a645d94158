"""The server's application over the fake engine, as an endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core_apis.app import create_app
from core_commands.client.app_endpoint import AppEndpoint
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from tests.apis.fake_engine import make_engine


@asynccontextmanager
async def fake_endpoint(
    config: ServerConfig | None = None, engine: AsyncEngine | None = None
) -> AsyncIterator[AppEndpoint]:
    engine = engine or make_engine()
    app = create_app(engine, config or ServerConfig(), engine.model_config, engine.config.cache)
    try:
        yield AppEndpoint(app)
    finally:
        await app.state.context.close()
        await engine.close()
