"""Prompts of completions that are embeddings, over HTTP, against transformers; and what strangers may send in their place."""

import base64
import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM

from core.api.messages import EngineRequest
from core_apis.protocol.sampling import NOT_SERVED
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.apis.conftest import RunningServer, run_server
from tests.apis.scripted_engine import KeepingClient
from tests.apis.test_real_server import client_of, serving

SIZE = 64
GREEDY: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}


@pytest.fixture(scope="module")
def taking() -> Iterator[RunningServer]:
    with run_server(client=KeepingClient, embedding_size=SIZE, max_model_len=256) as running:
        yield running


def post(server: RunningServer, **body: object) -> httpx.Response:
    return server.http.post("/v1/completions", json={**GREEDY, **body})


def last(server: RunningServer) -> EngineRequest:
    """The last request that the engine got."""
    assert isinstance(server.fake, KeepingClient)
    return server.fake.seen[-1]


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed)) * 0.05


def of_torch(value: object) -> str:
    """As vLLM's clients write a tensor."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return base64.b64encode(stream.getvalue()).decode()


def of_safetensors(value: torch.Tensor) -> str:
    return base64.b64encode(save({"prompt": value.contiguous()})).decode()


FORMS: dict[str, Callable[[torch.Tensor], str]] = {
    "torch": of_torch,
    "a batch of one": lambda value: of_torch(value[None]),
    "a parameter": lambda value: of_torch(torch.nn.Parameter(value)),
    "strides": lambda value: of_torch(torch.stack([value, -value], dim=2)[:, :, 0]),
    "an offset": lambda value: of_torch(torch.cat([-value, value])[len(value) :]),
    "doubles": lambda value: of_torch(value.double()),
    "safetensors": of_safetensors,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_gets_what_was_sent(taking: RunningServer, form: str) -> None:
    value = drawn(7, seed=7)
    body = {"prompt_embeds": FORMS[form](value), "return_token_ids": True}
    answer = taking.client.completions.create(model="alias", prompt=None, extra_body=body)  # type: ignore[call-overload]
    assert answer.usage.prompt_tokens == 7
    assert not hasattr(answer.choices[0], "prompt_token_ids")
    assert last(taking).prompt_embeds == value.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("write", [of_torch, of_safetensors])
def test_halves(taking: RunningServer, dtype: torch.dtype, write: Callable[[torch.Tensor], str]) -> None:
    value = drawn(7).to(dtype)
    assert post(taking, prompt_embeds=write(value)).status_code == 200
    assert last(taking).prompt_embeds == value.float().numpy().tobytes()


@pytest.mark.parametrize("stride", [2**61, 2**62])
def test_the_stride_of_a_single_prompt_is_of_no_account(taking: RunningServer, stride: int) -> None:
    value = drawn(7)
    answer = post(taking, prompt_embeds=of_torch(value.as_strided((1, *value.shape), (stride, SIZE, 1))))
    assert answer.status_code == 200 and last(taking).prompt_embeds == value.numpy().tobytes()


def test_embeddings_come_before_texts(taking: RunningServer) -> None:
    values = [drawn(3), drawn(4)]
    answer = post(taking, prompt="Hi", prompt_embeds=[of_torch(value) for value in values]).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    by_length = {len(request.prompt_embeds): request for request in taking.fake.seen[-3:]}  # type: ignore[attr-defined]
    assert sorted(by_length) == [0, 3 * SIZE * 4, 4 * SIZE * 4]


class Evil:
    """Its pickle runs code where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit",))


def zipped(data: bytes, compression: int = zipfile.ZIP_STORED) -> str:
    """A file like torch's, with any pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/data/0", bytes(SIZE * 4))
    return base64.b64encode(stream.getvalue()).decode()


def laughs() -> bytes:
    """A dictionary whose key is a tuple of tuples, each twice the one before: its hash takes for ever."""
    twice = b"".join(b"q%ch%c\x86" % (depth, depth) for depth in range(200))
    return b"\x80\x02}K\x00" + twice + b"K\x01s."


def shared(levels: int) -> bytes:
    """A name to import that is a tuple of tuples, each twice the one before: its text takes for ever."""
    twice = b"".join(b"q%ch%c\x86" % (depth, depth) for depth in range(levels))
    return b"\x80\x04K\x00" + twice + b"\x8c\x01a\x93."


def claimed(shape: list[int]) -> str:
    """A safetensors file that says more than it holds."""
    header = b'{"a":{"dtype":"F32","shape":%s,"data_offsets":[0,4]}}' % str(shape).encode()
    return base64.b64encode(len(header).to_bytes(8, "little") + header + bytes(4)).decode()


HOSTILE: dict[str, tuple[Callable[[], object], str]] = {
    "no base64": (lambda: "héllo", "is no base64"),
    "nothing": (lambda: "", "The field 'prompt' is missing|no file of torch"),
    "no file": (lambda: base64.b64encode(b"hello").decode(), "no file of torch 1.6"),
    "a zip": (lambda: base64.b64encode(b"PK\x03\x04").decode(), "damaged or incomplete"),
    "a number": (lambda: 5, "prompt_embeds"),
    "numbers": (lambda: [5], "prompt_embeds"),
    "code": (lambda: of_torch(Evil()), "Nothing of it was run"),
    "a pickle": (lambda: base64.b64encode(pickle.dumps(Evil())).decode(), "no file of torch 1.6"),
    "compressed": (lambda: zipped(b"N" * 10_000, zipfile.ZIP_DEFLATED), "compressed"),
    "a large pickle": (lambda: zipped(bytes(100_000)), "more than 16384 bytes"),
    "laughs": (lambda: zipped(laughs()), "damaged"),
    "laughs in a name": (lambda: zipped(shared(20)), "it imports what is no name"),
    "tensors": (lambda: of_torch({"a": drawn(2)}), "holds a dict; expected one tensor"),
    "a list": (lambda: of_torch([drawn(2)]), "holds a list; expected one tensor"),
    "integers": (lambda: of_torch(torch.zeros(2, SIZE, dtype=torch.int64)), "its numbers are I64"),
    "complex": (lambda: of_torch(torch.zeros(2, SIZE, dtype=torch.complex64)), "Nothing of it was run"),
    "sparse": (lambda: of_torch(torch.eye(SIZE).to_sparse()), "Nothing of it was run"),
    "a meta tensor": (lambda: of_torch(torch.empty(2, SIZE, device="meta")), "prompt_embeds"),
    "another size": (lambda: of_torch(drawn(2)[:, :8]), "expected (tokens, 64)"),
    "one dimension": (lambda: of_torch(drawn(1)[0]), "expected (tokens, 64)"),
    "no token": (lambda: of_torch(drawn(0)), "at least one token"),
    "too many tokens": (lambda: of_torch(drawn(300)), "300 positions"),
    "a claim": (lambda: of_torch(torch.zeros(1).expand(10**9, SIZE)), "1000000000 positions"),
    "rows that are one": (lambda: of_torch(torch.zeros(SIZE).expand(200, SIZE)), "send tensor.contiguous()"),
    "a claim of safetensors": (lambda: claimed([10**9, SIZE]), "does not lie in the file"),
    "dimensions": (lambda: claimed([2**62] * 50), "does not lie in the file"),
    "nan": (lambda: of_torch(torch.full((2, SIZE), torch.nan)), "NaN or infinity"),
    "infinity": (lambda: of_torch(torch.full((2, SIZE), 1e300, dtype=torch.float64)), "NaN or infinity"),
    "several": (lambda: base64.b64encode(save({"a": drawn(1), "b": drawn(1)})).decode(), "has 2 tensors"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_strangers_send_is_a_sentence(taking: RunningServer, name: str) -> None:
    make, sentences = HOSTILE[name]
    answer = post(taking, prompt_embeds=make())
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert any(sentence in error["message"] for sentence in sentences.split("|"))
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    "field, value",
    [
        ("echo", True),
        ("prompt_logprobs", 1),
        ("truncate_prompt_tokens", 1),
        ("repetition_penalty", 1.5),
        ("suffix", "a"),
    ],
)
def test_fields_of_texts_are_refused(taking: RunningServer, field: str, value: object) -> None:
    answer = post(taking, prompt_embeds=of_torch(drawn(2)), **{field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_numbers_are_bounded() -> None:
    limits = ServerLimits(max_body_size=65_536)
    with run_server(ServerConfig(limits=limits), client=KeepingClient, embedding_size=SIZE, max_model_len=256) as small:
        rows = [of_torch(drawn(160).bfloat16()), of_torch(drawn(160).bfloat16())]
        assert post(small, prompt_embeds=rows[0]).status_code == 200
        answer = post(small, prompt_embeds=rows)
        assert answer.status_code == 400 and "--max-body-size" in answer.json()["error"]["message"]


def test_it_is_asked_for(server: RunningServer) -> None:
    answer = server.http.post("/v1/completions", json={"prompt_embeds": of_torch(drawn(2))})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "prompt_embeds"
    assert "--enable-prompt-embeds" in error["message"] and "prompt_embeds" not in NOT_SERVED
    with pytest.raises(openai.BadRequestError, match="/v1/completions takes embeddings"):
        server.client.chat.completions.create(
            model="fake-model", messages=[{"role": "user", "content": "a"}], extra_body={"prompt_embeds": "a"}
        )


@pytest.mark.slow
def test_a_real_server_continues_them_as_transformers_does(tiny_llama: Path, tmp_path: Path) -> None:
    oracle: Any = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    prompt = drawn(40)
    wanted = oracle.generate(inputs_embeds=prompt[None], max_new_tokens=6, min_new_tokens=6, do_sample=False)
    settings = ("--dtype", "float32", "--kv-cache-memory-bytes", "8M", "--max-model-len", "256")
    body = {"ignore_eos": True, "return_token_ids": True, "prompt_embeds": of_torch(prompt)}
    with serving(tmp_path / "log", str(tiny_llama), "--enable-prompt-embeds", *settings) as running:
        client = client_of(running)
        model = client.models.list().data[0].id
        answer = client.completions.create(model=model, prompt=None, **GREEDY, extra_body=body)
        chunks = client.completions.create(model=model, prompt=None, stream=True, **GREEDY, extra_body=body)
        assert answer.choices[0].token_ids == wanted[0].tolist()
        assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
