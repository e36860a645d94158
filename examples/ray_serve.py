"""The server as a Ray Serve application: `serve run examples.ray_serve:build model=MODEL arguments="--max-model-len 4096"`.

Needs `pip install "core-engine[all,ray]"`. A replica is what `core serve` is without its port: one engine, or a group of them
with `--data-parallel-size`, and the application that answers for it. Ray starts replicas, chooses one for each request, and
ends those that are unhealthy or not needed. docs/deployment.md has what it does not do.
"""

import asyncio
import contextlib
import functools
import shlex
import sys

import msgspec

try:
    from ray import serve
except ImportError:
    sys.exit('examples/ray_serve.py: Ray Serve is not installed; install it with: pip install "core-engine[all,ray]"')

ENGINE_END_S = 15
REFUSED = (
    *(
        "api_server_count",
        "headless",
        "data_parallel_backend",
        "host",
        "port",
        "uds",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "root_path",
    ),
    "shutdown_timeout",
    "request_journal",
)
"""Arguments about the port and the end, which are Ray's, and about files that one server alone may have."""


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `build`.

    model: as for `core serve`; empty: the embedded one. arguments: further words of its command line.
    cpus, gpus: what Ray reserves for a replica. It enforces nothing: give the engine as many threads, and its device.
    min_replicas, max_replicas: the bounds of autoscaling, which aims at `target_requests` running requests a replica.
    max_requests: limit of requests that a replica has at a time; others wait in Ray's proxy.
    drain_s: how long requests may still run in a replica that is taken away.
    """

    model: str = ""
    arguments: str = ""
    cpus: float = 2
    gpus: float = 0
    min_replicas: int = 1
    max_replicas: int = 2
    target_requests: float = 32
    max_requests: int = 256
    drain_s: float = 120


@serve.deployment(name="core", max_constructor_retry_count=2, health_check_period_s=5, health_check_timeout_s=10)
@serve.ingress()
class Replica:
    """One engine, or one group, and the application over it. Ray calls the methods. words: of the command line."""

    async def __init__(self, words: list[str], drain_s: float):
        from core_apis.app import create_app
        from core_apis.server.launch import start_engine
        from core_commands.cli.serve import resolve_words
        from core_commands.client.early_engine import early_values, spawn_early
        from core_config.explained import explained

        self.drain_s = drain_s
        # In this thread, not in one of a pool: the engine ends with the thread that has spawned it.
        process = spawn_early(early_values(words))
        try:
            resolution = resolve_words(words)
            given = [name for name in REFUSED if resolution.arguments[name][1] not in ("default", "derived")]
            if given:
                raise ValueError(
                    f"{', '.join(given)}: not with Ray Serve, which has the port and places replicas; leave it out."
                )
            self.engine, helper = await start_engine(resolution, process)
        except BaseException:
            process.discard()
            raise
        self.application = create_app(
            self.engine, resolution.server, self.engine.config.model, self.engine.config.cache
        )
        self.context = self.application.state.context
        self.context.explain = functools.partial(explained, resolution)
        self.context.preparer.warm(helper)
        self.engine.grammars.warm()

    def __serve_build_asgi_app__(self):
        return self.application

    async def check_health(self):
        """Raise when the engine is given up or silent, as /live answers 503; Ray then replaces the replica.

        Not /ready: while an engine is started again, its streams wait for it, and replacing the replica would end them.
        """
        await self.engine.check_health()

    async def __del__(self):
        """End, after Ray has waited for the requests that it knows of; responses in the background are unknown to it."""
        if not hasattr(self, "context"):
            return
        self.context.drain.begin(self.drain_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.context.until_idle(), self.drain_s)
        await self.context.close()
        await self.engine.close()


def build(arguments: dict[str, str]) -> serve.Application:
    """Return the application. arguments: see `Settings`; those of `serve run` are strings."""
    settings = msgspec.convert(arguments, Settings, strict=False)
    words = [*([settings.model] if settings.model else []), *shlex.split(settings.arguments)]
    return Replica.options(
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        max_ongoing_requests=settings.max_requests,
        autoscaling_config={
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.target_requests,
        },
        graceful_shutdown_timeout_s=settings.drain_s + ENGINE_END_S,
    ).bind(words, settings.drain_s)
