"""Checks of HTTP APIs: their bodies are read without FastAPI, their routes have a class of access and paths of their
own.

Owns: the checks of APIs. Never does: call an engine. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import msgspec

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.api.errors import RequestError
from core.plugin.distributions import is_own
from core_apis.api_routes import ApiRoutes
from core_apis.apis import load_apis
from core_apis.body_kinds import BodyKind
from core_apis.callers.access import ACCESS
from core_config.served.server_config import ServerConfig
from core_kit.case import Failure, Subject

SECONDS = 60.0
BODIES = """
import sys
import msgspec
from core.api.config import ResolvedPlugin
from core_apis.apis import load_apis

((_, api),) = load_apis([msgspec.json.decode(sys.argv[1], type=ResolvedPlugin)])
api.bodies()
print(*(name for name in ("fastapi", "torch") if name in sys.modules))
"""


def bodies_are_rows(subject: Subject) -> None:
    """Its kinds of bodies have names of their own, and results that cross processes."""
    others = [api for name, api in load_apis(None) if name != subject.manifest.row.name]
    own = {kind.name for api in others for kind in api.bodies()}
    seen: set[str] = set()
    for kind in subject.loaded.bodies():
        if not isinstance(kind, BodyKind):
            raise Failure(f"bodies() has {kind!r}; expected a core_apis.body_kinds.BodyKind")
        if kind.name in own or kind.name in seen:
            raise Failure(f"the kind of body '{kind.name}' is another one's; expected a name of its own")
        seen.add(kind.name)
        try:
            msgspec.msgpack.Decoder(kind.result)
        except TypeError as error:
            raise Failure(f"the result of '{kind.name}' cannot cross processes: {error}") from error


def bodies_are_light(subject: Subject) -> None:
    """Reading its kinds of bodies imports neither FastAPI nor torch: helper processes do so."""
    row = msgspec.json.encode(subject.row).decode()
    words = [sys.executable, "-P", "-c", BODIES, row]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise Failure(f"bodies() fails in a process of its own: {done.stderr.strip()[-500:]}")
    heavy = done.stdout.split()
    if heavy:
        raise Failure(
            f"bodies() imports {', '.join(heavy)}; import them in routes(), or in the modules that it imports"
        )


def bodies_refuse_nonsense(subject: Subject) -> None:
    """A body that is no JSON is refused with a sentence."""
    for kind in subject.loaded.bodies():
        try:
            kind.decode(b"\xff{")
        except RequestError:
            continue
        except Exception as error:
            told = f"'{kind.name}' raises {type(error).__name__} for a body that is no JSON; expected a RequestError"
            raise Failure(told) from error
        raise Failure(f"'{kind.name}' takes a body that is no JSON")


def routes_have_a_class(subject: Subject) -> None:
    """Every route has a class of access, and a path that no other API has."""
    for routes in _routes(subject):
        for route in routes.router.routes:
            path = str(getattr(route, "path_format", ""))
            if path not in routes.access:
                raise Failure(f"{path} has no class of access; expected 'public', 'tenant' or 'operator'")
            if path in ACCESS and not is_own(subject.manifest.row.distribution):
                raise Failure(f"{path} is a path of the engine's own")


def rows_have_bodies(subject: Subject) -> None:
    """Every row names a kind of body that it brings."""
    kinds = {kind.name for kind in subject.loaded.bodies()}
    for routes in _routes(subject):
        for exchange in routes.exchanges:
            if exchange.kind not in kinds:
                raise Failure(f"a row is of the kind '{exchange.kind}', which bodies() does not have")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    bodies_are_rows,
    bodies_are_light,
    bodies_refuse_nonsense,
    routes_have_a_class,
    rows_have_bodies,
)


def _settings() -> tuple[ServerConfig, EngineConfig]:
    """Return the configuration of a plain server."""
    engine = EngineConfig(
        model=ModelConfig(model="model", served_names=("model",)),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(),
        plugins=PluginChoices(loader="dummy", platform="cpu"),
    )
    return ServerConfig(), engine


def _routes(subject: Subject) -> list[ApiRoutes]:
    found: list[ApiRoutes] = []
    for routes in subject.loaded.routes(*_settings()):
        if not isinstance(routes, ApiRoutes):
            raise Failure(f"routes() has {routes!r}; expected core_apis.api_routes.ApiRoutes")
        found.append(routes)
    return found
