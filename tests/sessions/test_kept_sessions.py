"""Sessions in files: shared by servers, found after a restart, never trusted. And their pins, as the server asks for them."""

import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from core.api.config import CacheConfig, EngineConfig
from core_apis.sessions.files import KeptSession, KeyTerms, SessionFiles, packed, unpacked
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from core_tokens.tokenizer import Tokenizer
from tests.apis.conftest import RunningServer, run_server
from tests.sessions.merging import LettersClient, merging_tokenizer
from tests.sessions.test_server_sessions import KEYS, SAMPLED, TOKENIZED, call, chat, has, seen
from tests.sessions.test_turns import PROMPT, after


class PinningClient(LettersClient):
    """Answers calls about pins. calls: those that came; fits: whether there is room; on_pin: called before a pin."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        super().__init__(tokenizer, config)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fits = True
        self.on_pin: Callable[[], None] = lambda: None

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        if "prefix" not in method or method.startswith("reset"):
            return await super().call(method, arguments)
        self.calls.append((method, dict(arguments or {})))
        if method == "pin_prefix":
            self.on_pin()
            return {"fits": self.fits, "bytes": 64, "room": 640}
        return {"places": {"pool": 64, "disk": 32}, "pinned": 64, "held": 32} if method == "prefix_places" else True

    def pinned(self) -> list[tuple[str, str, int]]:
        """Name, tenant and number of tokens of each pin that was asked for."""
        asked = [given for method, given in self.calls if method == "pin_prefix"]
        return [(given["name"], given["prefix"]["tenant"], len(given["prefix"]["tokens"]) // 4) for given in asked]


def serving(root: Path | None, tokenizer: Tokenizer | None = None) -> AbstractContextManager[RunningServer]:
    config = ServerConfig(api_keys=KEYS, limits=ServerLimits(max_sessions_per_key=4, kv_session_lifetime=500.0))
    return run_server(
        config,
        tokenizer=tokenizer or merging_tokenizer(),
        make_client=PinningClient,
        max_model_len=1024,
        cache=CacheConfig(disk_path=None if root is None else str(root)),
    )


def pins_of(server: RunningServer) -> PinningClient:
    assert isinstance(server.fake, PinningClient)
    return server.fake


def turns(server: RunningServer, name: str, key: str = KEYS[0]) -> int:
    answer = call(server, "GET", f"/v1/sessions/{name}", key)
    return len(answer.json()["turns"]) if answer.status_code == 200 else -answer.status_code


def until(condition: Callable[[], bool]) -> None:
    """Wait for what a server does after its answer."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def files(root: Path) -> list[Path]:
    return sorted(root.glob("sessions/*/*/*.session"))


def test_two_servers_share_what_a_third_one_finds(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as other:
        chat(one, "mine")
        assert turns(other, "mine") == 1
        chat(other, "mine", "Why?")
        assert has(seen(other), SAMPLED) and not has(seen(other), TOKENIZED)
        assert turns(one, "mine") == 2 and turns(one, "mine", KEYS[1]) == -404
        assert call(other, "POST", "/v1/sessions/mine/fork", json={"name": "branch"}).status_code == 200
        listed = call(one, "GET", "/v1/sessions").json()["data"]
        assert sorted(each["id"] for each in listed) == ["branch", "mine"]
        assert call(one, "POST", "/v1/sessions/mine/rewind", json={"turn": 1}).status_code == 200
        assert (turns(other, "mine"), turns(other, "branch")) == (1, 2)
        assert call(one, "DELETE", "/v1/sessions/branch").status_code == 200
        assert turns(other, "branch") == -404
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not any(key in str(path) or key.encode() in path.read_bytes() for key in KEYS)
    with serving(tmp_path) as third:
        assert turns(third, "mine") == 1
        assert chat(third, "mine", "Who?")["explain"]["session"]["kept_tokens"] >= len(SAMPLED)
        assert has(seen(third), SAMPLED)


def test_the_limit_of_a_key_counts_the_sessions_of_all_servers(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as other:
        for name in "abcd":
            chat(one, name)
        body = {"messages": [{"role": "user", "content": "hi"}], "session": "e"}
        assert call(other, "POST", "/v1/chat/completions", json=body).status_code == 409


def test_what_is_damaged_old_or_of_another_tokenizer_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as server:
        for name in "abc":
            chat(server, name)
    damaged, cut, old = files(tmp_path)
    damaged.write_bytes(b"\xc1" + damaged.read_bytes()[1:])
    cut.write_bytes(cut.read_bytes()[:-9])
    os.utime(old, (time.time() - 1000,) * 2)
    with serving(tmp_path) as server:
        assert len(call(server, "GET", "/v1/sessions").json()["data"]) == 1
        assert caplog.text.count("is ignored") == 2
        chat(server, "new")
        assert not old.exists() and damaged.exists()
    other = merging_tokenizer()
    other.backend.add_tokens(["xyz"])
    with serving(tmp_path, other) as server:
        assert call(server, "GET", "/v1/sessions").json()["data"] == []


def test_a_file_that_others_can_write_or_a_link_is_not_read(tmp_path: Path) -> None:
    kept, shown = packed([after([], PROMPT, "roll")])
    session = KeptSession(1, "s", 5, 0, time.time(), kept, shown, True, KeyTerms("salt", "tenant"))
    place = SessionFiles(tmp_path / "sessions", "tokenizer")
    place.save("tenant", session)
    (path,) = files(tmp_path)
    assert place.load("tenant", "s") == session
    path.chmod(0o622)
    assert place.load("tenant", "s") is None
    path.chmod(0o600)
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))
    assert place.load("tenant", "s") is None
    (tmp_path / "sessions").chmod(0o777)
    with pytest.raises(PermissionError, match="other users"):
        SessionFiles(tmp_path / "sessions", "tokenizer")


@pytest.mark.parametrize(
    "field, value", [("parent", 5), ("parent", 0), ("kept", 3), ("num_prompt", 0), ("own", b"\xff" * 4)]
)
def test_turns_that_contradict_themselves_are_refused(field: str, value: Any) -> None:
    kept, shown = packed([after([], PROMPT, "roll")])
    session = KeptSession(1, "s", 5, 0, 0.0, kept, shown)
    assert unpacked(session)[0].ids() == after([], PROMPT, "roll").ids()
    setattr(kept[0], field, value)
    with pytest.raises(ValueError, match="turn"):
        unpacked(session)


def test_forks_keep_their_common_turns_once(tmp_path: Path) -> None:
    first = after([], PROMPT, "roll")
    second = after([first], f"{PROMPT}roll</s>\nall", "hall")
    kept, shown = packed([second])
    assert len(kept) == 2 and shown == [1]
    assert unpacked(KeptSession(1, "s", 5, 0, 0.0, kept, shown))[0].ids() == second.ids()


def test_pins_follow_their_session(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        fake = pins_of(server)
        chat(server, "mine")
        assert call(server, "GET", "/v1/sessions/mine").json()["pinned"] is False
        pinned = call(server, "POST", "/v1/sessions/mine/pin").json()
        assert pinned["pinned"] and pinned["kv_bytes"] == {"pool": 64, "disk": 32} and pinned["pinned_bytes"] == 64
        assert pinned["held_bytes"] == 32
        (name, tenant, size) = fake.pinned()[-1]
        assert name == "mine" and len(tenant) == 64 and size == pinned["tokens"]
        chat(server, "mine", "Why?")
        assert call(server, "GET", "/v1/sessions/mine").json()["tokens"] == fake.pinned()[-1][2] > size
        assert call(server, "POST", "/v1/sessions/mine/rewind", json={"turn": 1}).status_code == 200
        call(server, "GET", "/v1/sessions/mine")
        assert fake.pinned()[-1][2] == size
        count = len(fake.pinned())
        server.loop.call_soon_threadsafe(server.engine.restarts.recovered)
        until(lambda: len(fake.pinned()) == count + 1)  # another engine has no pins
        forked = call(server, "POST", "/v1/sessions/mine/fork", json={"name": "branch"}).json()
        assert not forked["pinned"]
        for method in ("POST", "DELETE"):
            assert call(server, method, "/v1/sessions/mine/pin", KEYS[1]).status_code == 404
            assert call(server, method, "/v1/sessions/none/pin").status_code == 404
    with serving(tmp_path) as server:
        fake = pins_of(server)
        assert call(server, "GET", "/v1/sessions/mine").json()["pinned"] is True
        chat(server, "mine", "Who?")
        call(server, "GET", "/v1/sessions/mine")
        assert len(fake.pinned()) == 1
        assert call(server, "DELETE", "/v1/sessions/mine/pin").json()["pinned"] is False
        assert [method for method, _ in fake.calls][-2:] == ["unpin_prefix", "prefix_places"]


def test_a_pin_without_room_and_a_session_that_goes() -> None:
    with serving(None) as server:
        fake = pins_of(server)
        chat(server, "mine")
        fake.fits = False
        full = call(server, "POST", "/v1/sessions/mine/pin")
        assert full.status_code == 409 and full.json()["error"]["code"] == "over_share"
        assert "--kv-session-share" in full.text and "640 bytes" in full.text
        assert call(server, "GET", "/v1/sessions/mine").json()["pinned"] is False
        fake.fits = True
        assert call(server, "POST", "/v1/sessions/mine/pin").status_code == 200
        assert call(server, "DELETE", "/v1/sessions/mine").status_code == 200
        call(server, "GET", "/v1/sessions")
        assert fake.calls[-1][0] == "unpin_prefix"


def test_a_session_that_another_server_has_deleted_is_pinned_no_more(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as other:
        chat(one, "mine")
        assert call(one, "POST", "/v1/sessions/mine/pin").status_code == 200
        assert call(other, "GET", "/v1/sessions/mine").json()["pinned"] is True
        assert call(one, "DELETE", "/v1/sessions/mine").status_code == 200
        other.loop.call_soon_threadsafe(other.engine.restarts.recovered)
        until(lambda: pins_of(other).calls[-1][0] == "unpin_prefix")
        assert pins_of(other).pinned() == []


@pytest.mark.parametrize("when", ["before a turn is pinned", "while nobody asks"])
def test_a_session_whose_file_is_gone_is_pinned_no_more(tmp_path: Path, when: str) -> None:
    def lose() -> None:
        for path in files(tmp_path):
            path.unlink()

    with serving(tmp_path) as server:
        fake = pins_of(server)
        chat(server, "mine")
        assert call(server, "POST", "/v1/sessions/mine/pin").status_code == 200
        if when == "before a turn is pinned":
            fake.on_pin = lose
            chat(server, "mine", "Why?")
        else:
            lose()
            assert call(server, "GET", "/v1/sessions/mine").status_code == 404
        until(lambda: fake.calls[-1][0] == "unpin_prefix")
        assert call(server, "GET", "/v1/sessions").json()["data"] == []


def test_a_session_that_ends_without_a_turn_leaves_no_file(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        chat(server, "mine")
        assert call(server, "POST", "/v1/sessions/mine/rewind", json={"turn": 0}).status_code == 200
        assert len(files(tmp_path)) == 1
        body = {"messages": [{"role": "user", "content": "GO"}], "session": "mine", "stream": True}
        headers = {"Authorization": f"Bearer {KEYS[0]}"}
        with server.http.stream("POST", "/v1/chat/completions", headers=headers, json=body) as answer:
            next(answer.iter_lines())
        until(lambda: files(tmp_path) == [])
        assert turns(server, "mine") == -404


def test_an_engine_without_a_cache_pins_nothing() -> None:
    cache = CacheConfig(enable_prefix_caching=False)
    with run_server(
        tokenizer=merging_tokenizer(), make_client=PinningClient, max_model_len=1024, cache=cache
    ) as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "session": "mine"}
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
        answer = server.http.post("/v1/sessions/mine/pin")
        assert answer.status_code == 400 and "--no-enable-prefix-caching" in answer.text
        assert pins_of(server).calls == []
