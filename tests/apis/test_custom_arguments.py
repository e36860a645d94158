"""`vllm_xargs`: arguments of logits processors on their way through HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.api.messages import EngineRequest
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.fake_engine import FakeClient

HI = [{"role": "user", "content": "Hi"}]
QUIET = ServerConfig(uvicorn_log_level="warning")


class Checking(FakeClient):
    """An engine with a processor that wants numbers. seen: the arguments of requests that run."""

    seen: list[dict[str, Any] | None]

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        self.seen = [request.params.extra_args for request in requests]
        await super().add(requests)

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> bool | str:
        if method != "check_params":
            return await super().call(method, arguments)
        params = dict(arguments or {})["params"]
        shift = (params.get("extra_args") or {}).get("shift", 0)
        return "" if isinstance(shift, int) else f"logits processor Shifts: shift is {shift!r}; expected a number."


def test_arguments_reach_the_engine_and_mistakes_are_refused() -> None:
    with run_server(QUIET, client=Checking, checks_params=True) as server:
        given = {"shift": 3, "words": ["a", "b"]}
        for path, body in (("completions", {"prompt": "Hi"}), ("chat/completions", {"messages": HI})):
            answer = server.http.post(f"/v1/{path}", json={**body, "max_tokens": 2, "vllm_xargs": given})
            assert answer.status_code == 200, answer.text
            assert isinstance(server.fake, Checking) and server.fake.seen == [given]
            wrong = server.http.post(f"/v1/{path}", json={**body, "vllm_xargs": {"shift": "far"}})
            error = wrong.json()["error"]
            assert (wrong.status_code, error["param"]) == (400, "vllm_xargs")
            assert error["message"] == "logits processor Shifts: shift is 'far'; expected a number."
        crowd = {f"k{number}": 0 for number in range(2000)}
        wrong = server.http.post("/v1/completions", json={"prompt": "Hi", "vllm_xargs": crowd})
        assert wrong.status_code == 400 and "vllm_xargs has 2000 entries" in wrong.json()["error"]["message"]
        assert not server.fake.live


def test_arguments_that_nobody_reads_are_refused() -> None:
    with run_server(QUIET, reads_extra_args=False) as server:
        for given in ({}, None):
            answer = server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1, "vllm_xargs": given})
            assert answer.status_code == 200, answer.text
        answer = server.http.post("/v1/completions", json={"prompt": "Hi", "vllm_xargs": {"shift": 1}})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "vllm_xargs")
        assert error["message"].startswith("vllm_xargs are given, but nothing here reads them")
