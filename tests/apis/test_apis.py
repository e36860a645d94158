"""Each HTTP API is a plugin: leaving one out takes its paths away and nothing else."""

from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from core.api.config import ProfilerConfig, ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.registry import PluginRegistry
from core.version import __version__
from core_apis.apis import OWN
from core_apis.app import create_app
from core_apis.callers.access import ACCESS
from core_config.served.apis import chosen_apis
from core_config.served.server_config import AdapterSettings, BatchSettings, ServerConfig
from tests.apis.fake_engine import make_engine
from tests.apis.test_api_keys import call

FIRST = {
    "openai": (
        "/v1/models",
        "/v1/models/{name}",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
    ),
    "generative_scoring": ("/generative_scoring", "/v1/generative_scoring"),
    "responses": ("/v1/responses",),
    "messages": ("/v1/messages", "/v1/messages/count_tokens"),
    "pooling": ("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"),
    "tokens": ("/tokenize", "/detokenize", "/tokenizer_info"),
    "token_io": ("/invocations", "/inference/v1/generate"),
    "operation": ("/health", "/metrics", "/reset_prefix_cache", "/sleep", "/update_weights", "/load"),
    "batches": ("/v1/files", "/v1/batches/{batch_id}/cancel"),
    "docs": ("/docs",),
    "page": ("/", "/live/requests"),
}
"""Some paths of each."""


def installed() -> list[ResolvedPlugin]:
    """The rows of the engine's own, as their entry points give them."""
    return [
        ResolvedPlugin(
            kind="api",
            name=own.name,
            target=f"core_apis.apis:{own.name.upper()}",
            distribution="core-engine",
            version=__version__,
        )
        for own in OWN
    ]


def chosen(words: str | None = None, rows: list[ResolvedPlugin] | None = None) -> tuple[ResolvedPlugin, ...]:
    problems: list[str] = []
    warnings: list[str] = []
    found = chosen_apis(PluginRegistry(rows or installed(), words), problems, warnings)
    assert (problems, warnings) == ([], [])
    return found


async def paths_of(**settings: Any) -> set[str]:
    """The paths that a server has which has all that its APIs bring. No path takes PATCH: 405 says that it is there."""
    engine = make_engine(changes=True, profiler=ProfilerConfig(directory="/traces"))
    adapters = AdapterSettings(is_updated=True)
    config = ServerConfig(
        enable_server_load_tracking=True, enable_tokenizer_info_endpoint=True, adapters=adapters, quotes=True
    )
    with TemporaryDirectory() as directory:
        config = msgspec.structs.replace(config, batches=BatchSettings(directory=directory))
        app = create_app(engine, msgspec.structs.replace(config, **settings), engine.model_config)
        found = {path for path in ACCESS if (await call(app, "PATCH", path))[0]["status"] == 405}
        assert set(app.openapi()["paths"]) <= found
        await app.state.context.close()
    await engine.close()
    return found


async def test_the_rows_of_the_entry_points_are_the_server_without_any() -> None:
    assert [row.name for row in chosen()] == [own.name for own in OWN]
    assert await paths_of(apis=chosen()) == await paths_of() == set(ACCESS)


@pytest.mark.parametrize("name", FIRST)
async def test_one_that_is_left_out_takes_its_paths_away_and_nothing_else(name: str) -> None:
    gone = set(ACCESS) - await paths_of(apis=chosen(f"no:{name}"))
    for other, paths in FIRST.items():
        assert (set(paths) <= gone) if other == name else not (set(paths) & gone), other


async def test_an_api_that_is_left_out_is_answered_with_404() -> None:
    engine = make_engine()
    app = create_app(engine, ServerConfig(apis=chosen("no:responses,no:page")), engine.model_config)
    for path, status in (("/v1/responses", 404), ("/", 404), ("/v1/models", 200), ("/health", 200)):
        sent = await call(app, "GET", path)
        assert sent[0]["status"] == status, path
    await app.state.context.close()
    await engine.close()


async def test_two_apis_with_one_path_end_the_start_with_both_names() -> None:
    again = msgspec.structs.replace(installed()[0], name="again", target="tests.apis.test_apis:AGAIN")
    engine = make_engine()
    with pytest.raises(PluginError, match=r"'again'.*'openai'.*--plugins no:again"):
        create_app(engine, ServerConfig(apis=(*chosen(), again)), engine.model_config)
    await engine.close()


class Again(type(OWN[0])):  # type: ignore[misc]
    """OpenAI's API under another name, without kinds of bodies of its own."""


AGAIN = Again("again", "the same paths", ("models",), "", 0)
