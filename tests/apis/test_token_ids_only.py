"""A server and an `LLM` without a tokenizer: ids in, ids out, and a sentence for all that needs text."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, RequestError
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import answer_ids, make_tokenizer

MODEL = {"model": "fake-model"}


@pytest.fixture(scope="module")
def textless() -> Iterator[RunningServer]:
    with run_server(ServerConfig(uvicorn_log_level="warning"), texts=False) as running:
        yield running


def test_ids_in_and_out(textless: RunningServer) -> None:
    body = {**MODEL, "prompt": [5, 6], "max_tokens": 60, "return_token_ids": True, "logprobs": 2}
    answer = textless.http.post("/v1/completions", json=body).json()
    (choice,) = answer["choices"]
    assert choice["text"] == "" and choice["token_ids"] == answer_ids(make_tokenizer(), 0)
    assert choice["logprobs"]["tokens"][0] == f"token_id:{choice['token_ids'][0]}"
    assert len(choice["logprobs"]["top_logprobs"][0]) > 1
    assert answer["usage"]["prompt_tokens"] == 2


def test_ids_are_streamed(textless: RunningServer) -> None:
    body = {**MODEL, "prompt": [5, 6], "max_tokens": 60, "return_token_ids": True, "stream": True}
    answer = textless.http.post("/v1/completions", json=body)
    import json

    rows = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    ids = [token for row in rows for choice in row["choices"] for token in choice.get("token_ids") or ()]
    assert ids == answer_ids(make_tokenizer(), 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "text"}),
        ("/v1/completions", {"prompt": [1], "stop": "x"}),
        ("/v1/completions", {"prompt": [1], "bad_words": ["x"]}),
        ("/v1/completions", {"prompt": [1], "echo": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_what_needs_text_is_refused(textless: RunningServer, path: str, body: dict[str, object]) -> None:
    answer = textless.http.post(path, json={**MODEL, **body})
    assert answer.status_code == 400
    assert "--skip-tokenizer-init" in answer.json()["error"]["message"]


def test_llm_without_a_tokenizer(tiny_llama: Path, tmp_path: Path) -> None:
    """A tokenizer that could not even be read is not looked for."""
    for file in tiny_llama.iterdir():
        if file.name != "tokenizer.json":
            shutil.copy(file, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{damaged")
    with LLM(str(tmp_path), skip_tokenizer_init=True, max_model_len=64, tokenizer="no/such/name") as llm:
        params = SamplingParams(max_tokens=4, temperature=0, logprobs=1)
        (output,) = llm.generate([1, 5, 6], params, use_tqdm=False)
        (completion,) = output.outputs
        assert len(completion.token_ids) == 4 and completion.text == ""
        assert completion.logprobs is not None and completion.logprobs[0][completion.token_ids[0]].decoded_token is None
        for prompt, refused in (
            ("text", params),
            ([1], SamplingParams(stop="x")),
            ([1], SamplingParams(bad_words=["x"])),
        ):
            with pytest.raises(RequestError, match="--skip-tokenizer-init"):
                llm.generate(prompt, refused, use_tqdm=False)
        with pytest.raises(ConfigError, match="without a tokenizer"):
            llm.chat([{"role": "user", "content": "a"}], use_tqdm=False)
