"""Everything around the completions: keys, CORS, ids, TLS, docs, health, metrics, tokens."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.api.config import ProfilerConfig
from core.api.stats import HaltHolder, SchedulerStats
from core.version import __version__
from core_config.served.buckets import histogram_buckets
from core_config.served.server_config import ServerConfig
from core_observers.step_sizes import STEP_BOUNDS
from tests.apis.conftest import RunningServer
from tests.apis.fake_engine import ANSWERS, MAX_MODEL_LEN, set_state

Starter = Callable[..., Any]
HI = [{"role": "user", "content": "Hi"}]


def quiet(**settings: Any) -> ServerConfig:
    return ServerConfig(uvicorn_log_level="warning", **settings)


def test_health_ping_version(server: RunningServer) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/ping").status_code == server.http.post("/ping").status_code == 200
    assert server.http.get("/version").json() == {"version": __version__}


def test_dead_engine(start_server: Starter) -> None:
    with start_server(quiet()) as running:
        received = []
        with pytest.raises(openai.APIError, match="signal 9"):
            for chunk in running.openai().completions.create(model="alias", prompt="DIE", stream=True):
                received.append(chunk)
        assert len(received) == 3
        assert running.http.get("/health").status_code == 503
        answer = running.http.post("/v1/completions", json={"prompt": "Hi"})
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "service_unavailable"
        assert running.http.get("/metrics").status_code == 200


def test_a_silent_engine_is_unhealthy_until_it_speaks(server: RunningServer) -> None:
    server.fake.silence_s = 119.0
    assert server.http.get("/health").status_code == 200
    server.fake.silence_s = 121.0
    answer = server.http.get("/health")
    assert answer.status_code == server.http.get("/ping").status_code == 503
    assert answer.json()["error"]["code"] == "engine_stalled"
    assert "121 s" in answer.json()["error"]["message"]
    server.fake.silence_s = 0.0
    assert server.http.get("/health").status_code == 200


def test_an_engine_that_computes_nothing_is_well_and_says_why(server: RunningServer) -> None:
    stats = server.engine.stats
    stats.phase, stats.holders = "paused", (HaltHolder("wait", 12.5),)
    waiting = {"reason": "wait", "holder": "a waiting call", "ends_with": "its end, or POST /resume", "since": 12.5}
    for path in ("/health", "/ping", "/live"):
        answer = server.http.get(path)
        assert (answer.status_code, answer.json()["state"], answer.json()["holders"]) == (200, "paused", [waiting])
    stats.utility, stats.utility_since = "finish_weight_update", 20.0
    told = server.http.get("/health").json()
    assert (told["state"], told["holders"][0]["reason"], told["holders"][0]["since"]) == (
        "updating weights",
        "update",
        20.0,
    )
    stats.utility = "sleep"
    assert server.http.get("/health").json()["state"] == "sleeping"
    stats.utility, stats.phase, stats.holders = "", "asleep", (HaltHolder("memory"),)
    told = server.http.get("/health").json()
    failed = {"reason": "memory", "holder": "a failed sleep", "ends_with": "POST /wake_up"}
    assert (told["state"], told["holders"]) == ("sleeping", [failed])
    stats.phase, stats.holders = "running", ()
    assert server.http.get("/health").json() == {"state": "serving", "engine_restarts": 0, "last_deaths": []}


def test_made_up_blocks_are_told(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "made_up" not in server.http.get("/health").json()
    config = server.engine.config
    plugins = msgspec.structs.replace(config.plugins, kv_connectors=("bench",))
    monkeypatch.setattr(server.engine, "config", msgspec.structs.replace(config, plugins=plugins))
    assert "no answer means anything" in server.http.get("/health").json()["made_up"]


def test_a_server_is_ready_while_requests_are_computed(server: RunningServer) -> None:
    stats = server.engine.stats
    assert server.http.get("/ready").json() == server.http.get("/health").json()
    stats.phase, stats.holders = "asleep", (HaltHolder("sleep"),)
    refused = server.http.get("/ready")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert "it is sleeping" in refused.json()["error"]["message"]
    assert "POST /wake_up" in refused.json()["error"]["message"]
    stats.phase, stats.holders = "running", ()
    assert server.http.get("/ready").status_code == 200
    server.fake.silence_s = 121.0
    assert server.http.get("/ready").json()["error"]["code"] == "engine_stalled"
    server.fake.silence_s = 0.0
    server.engine.restarts.died("crash", "ValueError: secret")
    refused = server.http.get("/ready")
    assert refused.status_code == 503 and "the start of the next engine" in refused.json()["error"]["message"]
    assert "secret" not in refused.text
    server.engine.restarts.recovered()
    assert server.http.get("/ready").status_code == 200


def test_deaths_of_the_engine_are_told(start_server: Starter) -> None:
    with start_server(quiet()) as running:
        assert running.http.get("/health").json() == {"state": "serving", "engine_restarts": 0, "last_deaths": []}
        restarts = running.engine.restarts
        restarts.died("crash")
        for path in ("/health", "/ping", "/ready"):  # no token could be computed
            refused = running.http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
            assert "the start of the next engine" in refused.json()["error"]["message"]
        live = running.http.get("/live")  # a restart of the server would end the streams that wait
        assert (live.status_code, live.json()["state"]) == (200, "recovering")
        restarts.restarted("crash")
        restarts.paused_since -= 3.0
        restarts.recovered()
        told = running.http.get("/ping").json()
        assert (told["state"], told["engine_restarts"]) == ("serving", 1)
        assert [death["cause"] for death in told["last_deaths"]] == ["crash"]
        samples = {
            (sample.name, sample.labels.get("cause") or sample.labels.get("le")): sample.value
            for family in text_string_to_metric_families(running.http.get("/metrics").text)
            for sample in family.samples
        }
        assert samples["core:engine_restarts_total", "crash"] == 1
        assert samples["core:engine_restarts_total", "wedge"] == 0, "there from the start, for rates"
        assert samples["core:engine_recovery_seconds_bucket", "2.5"] == 0
        assert samples["core:engine_recovery_seconds_bucket", "5.0"] == 1


def test_the_prefix_cache_is_reset_when_nobody_uses_it(start_server: Starter) -> None:
    with start_server(quiet(api_keys=("one",))) as running:
        assert running.http.post("/reset_prefix_cache").status_code == 401
        key = {"Authorization": "Bearer one"}
        answer = running.http.post("/reset_prefix_cache", headers=key)
        assert (answer.status_code, answer.json()) == (200, {"reset": True})
        with running.openai(api_key="one").completions.create(model="alias", prompt="SLOW", stream=True) as stream:
            next(iter(stream))
            answer = running.http.post("/reset_prefix_cache", headers=key)
            assert answer.status_code == 409 and "try again" in answer.json()["error"]["message"]
            answer = running.http.post("/reset_prefix_cache?reset_running_requests=perhaps", headers=key)
            assert answer.status_code == 400 and "expected true or false" in answer.json()["error"]["message"]
            answer = running.http.post("/reset_prefix_cache?reset_running_requests=true", headers=key)
            assert (answer.status_code, answer.json()) == (200, {"reset": True})


def test_residency_is_a_histogram(server: RunningServer) -> None:
    rows = [[0.0] * 17 for _ in range(3)]
    rows[0][4], rows[0][-1], rows[2][15], rows[2][-1] = 2.0, 1.5, 1.0, 9000.0
    set_state(server.engine, SchedulerStats(kv_residency=rows))
    families = {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}
    set_state(server.engine, SchedulerStats())
    lives = {(s.name, s.labels.get("le")): s.value for s in families["core:kv_block_lifetime_seconds"].samples}
    assert lives["core:kv_block_lifetime_seconds_bucket", "0.5"] == 0
    assert lives["core:kv_block_lifetime_seconds_bucket", "1.0"] == 2
    assert lives["core:kv_block_lifetime_seconds_sum", None] == 1.5
    gaps = {(s.name, s.labels.get("le")): s.value for s in families["core:kv_block_reuse_gap_seconds"].samples}
    assert gaps["core:kv_block_reuse_gap_seconds_bucket", "3600.0"] == 0
    assert gaps["core:kv_block_reuse_gap_seconds_count", None] == 1


def test_tokenize_and_back(server: RunningServer) -> None:
    text = "Hi, wörld 🙂"
    answer = server.http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert answer["tokens"] == server.engine.tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == MAX_MODEL_LEN
    assert answer["token_strs"][:3] == ["<s>", "H", "i"]
    assert server.http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "<s>" + text}
    plain = server.http.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": False}).json()
    assert plain["count"] == 2


def test_tokenize_messages(server: RunningServer) -> None:
    answer = server.http.post("/tokenize", json={"messages": HI}).json()
    text = server.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    answer = server.http.post("/tokenize", json={"messages": HI, "add_generation_prompt": False}).json()
    text = server.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


def test_api_keys(start_server: Starter) -> None:
    with start_server(quiet(api_keys=("one", "zwei"), root_path="/proxy")) as running:
        for key in ("one", "zwei"):
            assert running.openai(api_key=key).models.list().data
        with pytest.raises(openai.AuthenticationError) as caught:
            running.openai(api_key="wrong").models.list()
        assert caught.value.code == "invalid_api_key"
        for path in ("/v1/models", "/proxy/v1/models", "/v1/nothing"):
            assert running.http.get(path).status_code == 401
        assert running.http.post("/v1/chat/completions", json={"messages": HI}).status_code == 401
        for path in ("/health", "/ready", "/live", "/version", "/metrics", "/proxy/health"):
            assert running.http.get(path).status_code == 200
        preflight = {"origin": "http://a", "access-control-request-method": "POST"}
        assert running.http.options("/v1/models", headers=preflight).status_code == 200


def test_root_path(start_server: Starter) -> None:
    with start_server(quiet(root_path="/proxy")) as running:
        assert running.http.get("/proxy/v1/models").status_code == running.http.get("/v1/models").status_code == 200
        assert running.http.get("/openapi.json").json()["servers"] == [{"url": "/proxy"}]


def test_cors(start_server: Starter) -> None:
    config = quiet(
        allowed_origins=("http://a",), allowed_methods=("POST",), allowed_headers=("x-a",), allow_credentials=True
    )
    ask = {"origin": "http://a", "access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    with start_server(config) as running:
        answer = running.http.options("/v1/completions", headers=ask)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://a"
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert running.http.options("/v1/completions", headers={**ask, "origin": "http://b"}).status_code == 400
        assert "access-control-allow-origin" not in running.http.get("/health", headers={"origin": "http://b"}).headers


def test_cors_is_open_by_default(server: RunningServer) -> None:
    assert server.http.get("/health", headers={"origin": "http://a"}).headers["access-control-allow-origin"] == "*"


def test_request_ids(start_server: Starter, server: RunningServer) -> None:
    assert "x-request-id" not in server.http.get("/health").headers
    body = {"prompt": "Hi"}
    answer = server.http.post("/v1/completions", json=body, headers={"x-request-id": "abc"})
    assert answer.json()["id"] == "cmpl-abc"
    assert server.http.post("/v1/completions", json={**body, "request_id": "mine"}).json()["id"] == "cmpl-mine"
    with start_server(quiet(enable_request_id_headers=True)) as running:
        assert running.http.get("/health", headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
        for odd in ("ä".encode(), "١".encode(), b"a b", b"a" * 129):
            assert len(running.http.get("/health", headers={"x-request-id": odd}).headers["x-request-id"]) == 32
        first, second = (running.http.get("/nothing").headers["x-request-id"] for _ in range(2))
        assert first != second and len(first) == 32


async def test_the_same_request_id_twice_at_once(server: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        body = {"prompt": "SLOW", "request_id": "same", "max_tokens": 5}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3


def test_docs(start_server: Starter, server: RunningServer) -> None:
    assert [server.http.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [200] * 3
    with start_server(quiet(disable_fastapi_docs=True)) as running:
        assert [running.http.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3


def test_usage_settings(start_server: Starter) -> None:
    with start_server(quiet(enable_prompt_tokens_details=True, enable_force_include_usage=True)) as running:
        client = running.openai()
        answer = client.chat.completions.create(model="alias", messages=HI)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 2
        chunks = list(client.completions.create(model="alias", prompt="Hi", stream=True))
        assert chunks[-1].choices == [] and chunks[-1].usage is not None


def test_template_and_role_settings(start_server: Starter) -> None:
    config = quiet(
        chat_template="{{ messages[0]['content'] }}!{{ mood }}", response_role="model", return_tokens_as_token_ids=True
    )
    with start_server(config) as running:
        body: dict[str, Any] = {"messages": HI, "chat_template_kwargs": {"mood": "?"}}
        ids = running.http.post("/tokenize", json=body).json()["tokens"]
        assert running.engine.tokenizer.decode(ids) == "Hi!?"
        answer = running.http.post("/v1/chat/completions", json={**body, "logprobs": True}).json()["choices"][0]
        assert answer["message"]["role"] == "model"
        assert answer["logprobs"]["content"][0]["token"].startswith("token_id:")


def test_checkpoint_defaults_apply_unless_given(start_server: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server(quiet(), generation={"temperature": 0.25, "top_k": 7, "max_new_tokens": 5}) as running:
        seen = []
        add = running.fake.add

        async def spy(requests: Any) -> None:
            seen.extend(requests)
            await add(requests)

        monkeypatch.setattr(running.fake, "add", spy)
        answer = running.http.post("/v1/chat/completions", json={"messages": HI}).json()
        running.http.post("/v1/completions", json={"prompt": "Hi", "temperature": 0, "cache_salt": "s", "priority": 3})
    chat, completion = seen
    assert (chat.params.temperature, chat.params.top_k, chat.params.max_tokens) == (0.25, 7, 5)
    assert answer["usage"]["completion_tokens"] == 5
    assert (completion.params.temperature, completion.params.top_k, completion.params.max_tokens) == (0.0, 7, 5)
    assert (completion.cache_salt, completion.priority) == ("s", 3)


def test_request_log(start_server: Starter, caplog: pytest.LogCaptureFixture) -> None:
    with start_server(quiet(enable_log_requests=True, max_log_len=5)) as running, caplog.at_level("INFO", "core_apis"):
        running.http.post("/v1/completions", json={"prompt": "secretive", "request_id": "r"})
    line = next(record.getMessage() for record in caplog.records if "cmpl-r" in record.getMessage())
    assert "'secre'" in line and "10 prompt tokens" in line


def test_tls(start_server: Starter, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {cert} "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1",
        shell=True,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    with start_server(quiet(ssl_keyfile=str(key), ssl_certfile=str(cert))) as running:
        assert running.url.startswith("https://")
        assert httpx.get(f"{running.url}/health", verify=str(cert)).status_code == 200


def samples(running: RunningServer) -> dict[str, float]:
    """Name and finish reason → value."""
    text = running.http.get("/metrics").text
    return {
        sample.name
        + (":" + sample.labels["finished_reason"] if "finished_reason" in sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_metrics(start_server: Starter) -> None:
    with start_server(quiet()) as running:
        before = samples(running)
        assert before["core:request_success_total:stop"] == 0
        client = running.openai()
        client.completions.create(model="alias", prompt="Hi", max_tokens=100)
        list(client.completions.create(model="alias", prompt="Hi", max_tokens=4, n=2, stream=True))
        with client.completions.create(model="alias", prompt="SLOW", max_tokens=20, stream=True) as stream:
            next(iter(stream))
        running.wait_idle()
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="alias", prompt="FAIL")
        after = samples(running)
    length = len(ANSWERS[0].encode()) + 1
    reasons = {reason: after[f"core:request_success_total:{reason}"] for reason in ("stop", "length", "abort", "error")}
    assert reasons == {"stop": 1, "length": 2, "abort": 1, "error": 1}
    assert after["core:prompt_tokens_total"] == 3 + 3 + 5 + 5
    assert length + 8 + 4 <= after["core:generation_tokens_total"] <= length + 8 + 4 + 20
    assert after["core:prefix_cache_queries_total"] == 10 and after["core:prefix_cache_hits_total"] == 4
    assert after["core:kv_cache_usage_perc"] == 0.25
    assert after["core:num_requests_running"] == after["core:num_requests_waiting"] == 0
    assert after["core:cache_config_info"] == 1
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        assert after[f"core:{name}_count"] >= 2
    assert after["core:request_params_n_sum"] == 1 + 2 + 1
    assert after["core:request_max_num_generation_tokens_sum"] == length + 4 + 4
    # Two of each prompt's tokens are cached.
    assert after["core:prompt_tokens_cached_total"] == 4 * 2
    assert after["core:request_prefill_kv_computed_tokens_sum"] == (3 - 2) + (3 - 2) + (5 - 2)


def test_metric_labels(server: RunningServer) -> None:
    families = {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}
    ours = [family for name, family in families.items() if name.startswith("core:")]
    assert len(ours) >= 15
    assert all(sample.labels["model_name"] == "fake-model" for family in ours for sample in family.samples)


def test_state_of_the_engine_by_reason_and_size(server: RunningServer) -> None:
    sizes = [0] * (len(STEP_BOUNDS) + 2)
    sizes[0] = 3  # of one token each
    sizes[2] = 1  # of 9 to 16
    sizes[-1] = 3 + 12
    state = SchedulerStats(num_waiting=5, num_deferred=2, prefix_queries=100, prefix_hits=60, tier_hits=10)
    state.step_sizes = sizes
    set_state(server.engine, state)
    text = server.http.get("/metrics").text
    set_state(server.engine, SchedulerStats())
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, sample.labels.get("reason") or sample.labels.get("le")] = sample.value
    assert found["core:num_requests_waiting", None] == 5
    assert found["core:num_requests_waiting_by_reason", "capacity"] == 3
    assert found["core:num_requests_waiting_by_reason", "deferred"] == 2
    assert found["core:external_prefix_cache_queries_total", None] == 50
    assert found["core:iteration_tokens_total_bucket", "1.0"] == found["core:iteration_tokens_total_bucket", "8.0"] == 3
    assert found["core:iteration_tokens_total_bucket", "16.0"] == found["core:iteration_tokens_total_count", None] == 4
    assert found["core:iteration_tokens_total_sum", None] == 15


def test_metrics_under_vllms_names(start_server: Starter) -> None:
    with start_server(quiet(vllm_metrics=True)) as running:
        running.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 3})
        text = running.http.get("/metrics").text
    values: dict[str, dict[tuple[Any, ...], float]] = {"core": {}, "vllm": {}}
    for family in text_string_to_metric_families(text):
        prefix, _, _ = family.name.partition(":")
        for sample in family.samples if prefix in values else ():
            labels = {**sample.labels}
            assert labels.pop("engine", None) == ("0" if prefix == "vllm" else None)
            values[prefix][sample.name.partition(":")[2], *sorted(labels.items())] = sample.value
    assert values["core"] == values["vllm"] and len(values["core"]) > 100


def test_a_profile_is_asked_for_and_refused(start_server: Starter, server: RunningServer) -> None:
    assert server.http.post("/start_profile").status_code == 404
    with start_server(quiet(api_keys=("k",)), profiler=ProfilerConfig(directory="/traces")) as running:
        assert running.http.post("/start_profile").status_code == 401
        key = {"Authorization": "Bearer k"}
        refused = running.http.post("/start_profile", headers=key)
        assert refused.status_code == 409 and "stop it first" in refused.json()["error"]["message"]
        assert running.http.post("/stop_profile", headers=key).json() == {"path": "/traces/one"}


def test_a_balancer_that_asks_is_told_the_load_in_a_header(server: RunningServer) -> None:
    body = {"prompt": "Hi", "max_tokens": 2}
    plain = server.http.post("/v1/completions", json=body)
    assert "endpoint-load-metrics" not in plain.headers
    as_json = server.http.post("/v1/completions", json=body, headers={"endpoint-load-metrics-format": "json"})
    form, _, told = as_json.headers["endpoint-load-metrics"].partition(" ")
    metrics = json.loads(told)["named_metrics"]
    assert form == "JSON" and set(metrics) == {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"}
    as_text = server.http.get("/health", headers={"endpoint-load-metrics-format": "TEXT"})
    assert as_text.headers["endpoint-load-metrics"].startswith("TEXT named_metrics.kv_cache_usage_perc=")


def test_a_fingerprint_says_what_the_operator_wants(start_server: Starter) -> None:
    answers = {}
    for mode, value in (("hash", None), ("full", None), ("custom", "mine"), ("none", None)):
        with start_server(quiet(fingerprint_mode=mode, fingerprint_value=value)) as running:
            chat = running.http.post("/v1/chat/completions", json={"messages": HI}).json()
            text = running.http.post("/v1/completions", json={"prompt": "Hi"}).json()
            assert chat.get("system_fingerprint") == text.get("system_fingerprint")
            answers[mode] = chat.get("system_fingerprint")
    assert answers["custom"] == "mine" and answers["none"] is None
    assert answers["full"] == answers["hash"] and answers["hash"].startswith(f"core-{__version__}-")


def test_buckets_of_the_operators_own_and_refusals_with_tracebacks(
    start_server: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    settings = quiet(custom_histogram_buckets={"request_latency": [0.25, 7.0]}, log_error_stack=True)
    with start_server(settings) as running, caplog.at_level("WARNING", "core_apis"):
        page = running.http.get("/metrics").text
        bounds = [
            line.partition('le="')[2][:4] for line in page.splitlines() if "core:e2e_request_latency_seconds_b" in line
        ]
        assert bounds == ["0.25", '7.0"', "+Inf"]
        assert running.http.post("/v1/completions", json={"prompt": 5}).status_code == 400
    (record,) = [record for record in caplog.records if "is refused" in record.message]
    assert record.exc_info is not None and record.message.startswith("POST /v1/completions")


def test_buckets_that_cannot_be_are_sentences() -> None:
    problems: list[str] = []
    given = {
        "request_latency": [1, 2],
        "request_tokens": [2, 1],
        "iteration_tokens": [1],
        "request_latenzy": [1],
        "request_params_n": [True],
    }
    assert histogram_buckets(given, problems) == {"request_latency": [1.0, 2.0]}
    assert len(problems) == 4 and "Did you mean 'request_latency'?" in problems[2]
