"""Engines of one server in actors of a real Ray cluster of one node: `make test-ray`."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.on_ray.site import ENGINE_ACTOR, actors_of, answer, nothing_is_left, one_node, serving, streamed, until
from tests.tiny_models import save_checkpoint

pytest.importorskip("ray")
pytestmark = pytest.mark.ray
WORDS = ["--data-parallel-size", "2", "--data-parallel-backend", "ray"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    with one_node() as address:
        yield address


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("ray") / "llama")


def states(client: httpx.Client) -> list[str]:
    return [each["state"] for each in client.get("/live").json()["engines"]]


def engine_of(actor: psutil.Process) -> psutil.Process:
    (engine,) = [each for each in actor.children(recursive=True) if "core.engine.process" in each.cmdline()]
    return engine


@pytest.mark.parametrize("local", [0, 1])
def test_engines_come_from_ray_and_go_with_the_server(llama: Path, cluster: str, tmp_path: Path, local: int) -> None:
    words = [*WORDS, "--data-parallel-size-local", str(local), "--platform-config.threads", "1"]
    with serving(llama, cluster, tmp_path / "log", words) as (client, process):
        assert len(actors_of(ENGINE_ACTOR)) == 2 - local and states(client) == ["running", "running"]
        whole = answer(client)

        def kill_the_engine() -> None:
            engine_of(actors_of(ENGINE_ACTOR)[0]).kill()

        def kill_the_actor() -> None:
            actors_of(ENGINE_ACTOR)[0].kill()

        for kill in (kill_the_engine, kill_the_actor):
            texts = [streamed(client, kill if number == 0 else None) for number in range(2)]
            assert texts == [whole] * 2
            until("all engines are back", lambda: states(client) == ["running", "running"])
    assert process.returncode == 0, (tmp_path / "log").read_text()
    nothing_is_left()
