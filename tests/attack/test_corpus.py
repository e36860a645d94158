"""The small rows of the corpus against a server over the fake engine: each is answered as its row says."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from core.api.config import SchedulerConfig
from core.api.pooling import PoolingConfig
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.scripted_engine import PoolingClient
from tests.attack.corpus import ROWS
from tests.attack.make import nested, with_raw
from tests.attack.row import KEY, SETUPS, UNANSWERED, Answer, Row, problems
from tests.attack.send import Target, send

HEALTH = Row("health", "/health", method="GET", allowed=frozenset({200}))
SMALL = [row for row in ROWS if not row.large]
SCHEDULER_FIELDS = frozenset(SchedulerConfig.__struct_fields__)
POOLING = {"client": PoolingClient, "pooling": PoolingConfig(kinds=("mean",), normalize=False, size=PoolingClient.SIZE)}
PARAMETERS = '[{"type": "function", "name": "f", "parameters": %s}]'


@pytest.fixture(scope="module")
def target_of() -> Iterator[Callable[[str], Target]]:
    """The server of a setup, started when it is first wanted."""
    targets: dict[str, Target] = {}
    with ExitStack() as stack:

        def find(setup: str) -> Target:
            if setup not in targets:
                given = SETUPS[setup]
                own = {name: value for name, value in given.items() if name in ServerConfig.__struct_fields__}
                key = given.get("api_key", KEY)
                config = ServerConfig(api_keys=(key,), uvicorn_log_level="critical", **own)
                scheduler = SchedulerConfig(**{name: given[name] for name in SCHEDULER_FIELDS & given.keys()})
                pools = POOLING if given.get("runner") == "pooling" else {}
                running = stack.enter_context(run_server(config, scheduler=scheduler, **pools))
                port = httpx.URL(running.url).port
                assert port is not None
                targets[setup] = Target("127.0.0.1", port, key)
            return targets[setup]

        yield find


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_row(row: Row, target_of: Callable[[str], Target]) -> None:
    target = target_of(row.setup)
    assert problems(row, send(target, row, limit_s=5.0), timed=False) == []
    assert send(target, HEALTH).status == 200


@pytest.mark.parametrize(
    ("path", "field", "around", "kind", "depths", "padding"),
    [
        ("/v1/responses", "tools", PARAMETERS, "object", range(925, 965), 0),
        ("/v1/embeddings", "user", "%s", "list", range(970, 995), 20_000),  # in the helper process
    ],
)
def test_whatever_can_be_read_can_be_refused(
    path: str, field: str, around: str, kind: str, depths: range, padding: int, target_of: Callable[[str], Target]
) -> None:
    """Somewhere among these depths a body is just flat enough to be decoded, and too deep for what comes next."""
    request = {"input": "Hi", "model": None}
    target = target_of("vectors" if field == "user" else "plain")
    for depth in depths:
        body = with_raw(field, around % nested(depth, kind), of=request) + b" " * padding
        row = Row(f"{depth}", path, body, allowed=frozenset({200, 400}))
        assert problems(row, send(target, row, limit_s=20.0), timed=False) == []


def test_names_say_one_thing_each() -> None:
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(200, {}, b"{}", 0.1), "200 instead of 400"),
        (Answer(UNANSWERED, {}, b"", 0.1, "TimeoutError"), "no answer (TimeoutError)"),
        (Answer(400, {}, b"Internal", 0.1), "no error object"),
        (Answer(400, {}, b'{"error": {"message": "No.", "param": null}}', 0.1), "another form"),
        (
            Answer(400, {}, b'{"error": {"message": "No.", "type": "t", "param": null, "code": null}}', 0.1),
            "names none",
        ),
        (Answer(400, {}, b'{"error": {"message": "top_p", "type": "t", "param": null, "code": null}}', 9), "9.0 s"),
    ],
)
def test_wrong_answers_are_seen(answer: Answer, words: str) -> None:
    (problem,) = problems(Row("a row", "/v1/completions", names=("top_p",)), answer)
    assert words in problem


def test_only_this_machine_is_attacked() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
        Target("example.org", 80)


def test_setups_are_arguments_of_a_server() -> None:
    known = {*ServerConfig.__struct_fields__, *SCHEDULER_FIELDS, "api_key", "runner"}
    assert all(set(setup) <= known for setup in SETUPS.values())
    assert {row.setup for row in ROWS} <= set(SETUPS)
