"""Models from a hub, against a stand-in on this machine: what is downloaded, resumed, found offline, and refused."""

import json
from pathlib import Path

import pytest

from core.api.errors import UserError
from core_config.locating import hub_transfer
from core_config.locating.hub import Hub
from core_config.locating.hub_files import TOKENIZER, Wanted
from core_config.resolve import resolve
from tests.hub_stand_in import StandIn, commit_of, serving
from tests.torch_free import run_torch_free

NAME = "someone/some-model"
BODY = bytes(range(256)) * 40


@pytest.fixture
def stand_in():
    with serving(StandIn()) as hub:
        yield hub


@pytest.fixture
def hub(stand_in, tmp_path):
    return Hub(stand_in.endpoint, directory=str(tmp_path / "cache"))


def wanted(**options):
    return Wanted(NAME, **{"ignored": ["original/**/*"], **options})


def index_of(*shards):
    return json.dumps({"weight_map": {f"weight.{shard}": shard for shard in shards}}).encode()


def names_in(folder: Path):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


SHARDS = {"model-1.safetensors": BODY, "model-2.safetensors": BODY[1:]}  # equal files would be one blob
EVERYTHING = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "README.md": b"words",
    "modeling_own.py": b"raise SystemExit",
    "model.safetensors.index.json": index_of(*SHARDS),
    **SHARDS,
    "old.safetensors": BODY[2:],
    "consolidated.safetensors": BODY[3:],
    "params.json": b"{  }",
    "pytorch_model.bin": BODY[4:],
    "training_args.bin": b"pickle",
    "model-Q8_0.gguf": BODY[5:],
    "original/params.json": b"{    }",
    "onnx/config.json": b"{   }",
    "onnx/model.safetensors": BODY[6:],
}
ALWAYS = {"config.json", "tokenizer.json", "params.json", "model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, set(SHARDS)),
        ({"load_format": "safetensors"}, set(SHARDS)),
        ({"load_format": "mistral"}, {"consolidated.safetensors"}),
        ({"load_format": "pt"}, {"pytorch_model.bin"}),
        ({"load_format": "dummy"}, set()),
        ({"code": True}, {"modeling_own.py", *SHARDS}),
        ({"ignored": ["model-2*"]}, {"model-1.safetensors"}),
        ({"weights": False, "small": TOKENIZER}, set()),
    ],
)
def test_only_what_is_needed_is_downloaded(stand_in, hub, options, weights):
    stand_in.add(NAME, EVERYTHING)
    folder = hub.download(NAME, None, wanted(**options))
    small = {"tokenizer.json"} if options.get("weights") is False else ALWAYS
    assert names_in(folder) == stand_in.fetched() == small | weights
    for name in weights:
        assert (folder / name).read_bytes() == EVERYTHING[name]


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        ({"model.safetensors", "consolidated.safetensors"}, {"model.safetensors"}),
        ({"consolidated.safetensors"}, {"consolidated.safetensors"}),
        ({"pytorch_model.bin", "training_args.bin", "optimizer.pt"}, {"pytorch_model.bin"}),
        ({"model.pt", "scheduler.pt"}, {"model.pt"}),
        ({"a.gguf", "mmproj-a.gguf"}, {"a.gguf"}),
        ({"a.gguf", "b.gguf", "model.safetensors"}, {"model.safetensors"}),
        (
            {
                "modules.json",
                "model.safetensors",
                "1_Pooling/config.json",
                "2_Dense/config.json",
                "2_Dense/pytorch_model.bin",
            },
            {"model.safetensors", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin"},
        ),
        (
            {
                "modules.json",
                "model.safetensors",
                "2_Dense/model.safetensors",
                "2_Dense/pytorch_model.bin",
                "onnx/config.json",
            },
            {"model.safetensors", "2_Dense/model.safetensors"},
        ),
    ],
)
def test_weights_without_an_index(tmp_path, files, weights):
    assert set(Wanted(NAME).weight_files(files, tmp_path)) == weights


GGUFS = [
    "some-Q4_K_M.gguf", "some-Q4_K_S.gguf", "some-UD-Q4_K_XL.gguf", "some.bf16.gguf",
    "Q8_0/some-Q8_0-00002-of-00002.gguf", "Q8_0/some-Q8_0-00001-of-00002.gguf", "IQ4_XS/weights.gguf",
    "Q6_K/some-Q6_K-00001-of-00003.gguf", "Q6_K/some-Q6_K-00003-of-00003.gguf", "mmproj-BF16.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("quant", "files"),
    [
        ("q4_k_m", ["some-Q4_K_M.gguf"]),
        ("BF16", ["some.bf16.gguf"]),
        ("UD-Q4_K_XL", ["some-UD-Q4_K_XL.gguf"]),
        ("Q8_0", ["Q8_0/some-Q8_0-00001-of-00002.gguf", "Q8_0/some-Q8_0-00002-of-00002.gguf"]),
        ("iq4_xs", ["IQ4_XS/weights.gguf"]),
    ],
)
def test_one_gguf_of_many(quant, files):
    assert Wanted(NAME, quant=quant).weight_files(GGUFS, Path()) == files


@pytest.mark.parametrize(
    ("quant", "told"),
    [
        (
            "Q4_K",
            "no GGUF file's name holds 'Q4_K'; there are: IQ4_XS/weights.gguf; Q6_K; Q8_0; "
            "Q4_K_M; Q4_K_S; UD-Q4_K_XL; bf16",
        ),
        ("some", "'some' fits 6 GGUF models"),
        (None, "holds 7 GGUF models; name one as 'someone/some-model:WORD', of: IQ4_XS/weights.gguf; Q6_K;"),
        ("Q6_K", "split into 3 parts, of which 2 are there (missing: 2)"),
    ],
)
def test_a_gguf_that_is_not_one_is_told_with_the_choices(quant, told):
    with pytest.raises(UserError) as caught:
        Wanted(NAME, quant=quant).weight_files(GGUFS, Path())
    assert told in str(caught.value)


def test_a_gguf_is_downloaded_alone(stand_in, hub):
    files = {name: BODY[number:] for number, name in enumerate(GGUFS)}
    stand_in.add(NAME, {**files, "config.json": b"{}"})
    path = hub.download(NAME, None, wanted(quant="Q8_0"))
    assert path.name == "some-Q8_0-00001-of-00002.gguf" and path.read_bytes() == files[GGUFS[5]]
    assert {file for file in stand_in.fetched() if file.endswith("gguf")} == set(GGUFS[4:6])
    named = hub.download(NAME, None, wanted(file="some-Q4_K_S.gguf"))
    assert named.name == "some-Q4_K_S.gguf"
    with pytest.raises(UserError, match=r"there is no file 'other.gguf'; GGUF models: IQ4_XS"):
        hub.download(NAME, None, wanted(file="other.gguf"))


def test_a_repository_of_gguf_models_alone(stand_in, hub):
    stand_in.add(NAME, {"a-Q4_0.gguf": BODY, "a-Q8_0.gguf": BODY[1:]})
    assert hub.download(NAME, None, wanted(quant="q8_0")).read_bytes() == BODY[1:]
    away = Hub("http://127.0.0.1:9", directory=hub.directory)
    assert away.download(NAME, None, wanted(quant="q8_0")).read_bytes() == BODY[1:]
    with pytest.raises(UserError, match=r"holds 2 GGUF models; name one as 'someone/some-model:WORD', of: Q4_0; Q8_0"):
        hub.download(NAME, None, wanted())


def test_a_revision_is_a_branch_a_tag_or_a_commit(stand_in, hub):
    stand_in.add(NAME, {"config.json": b"1", "model.safetensors": BODY})
    stand_in.add(NAME, {"config.json": b"2", "model.safetensors": BODY[:5000]}, revision="v2")
    for revision in ("v2", commit_of(NAME, "v2")):
        folder = hub.download(NAME, revision, wanted())
        assert (folder / "config.json").read_bytes() == b"2" and folder.name == commit_of(NAME, "v2")
    with pytest.raises(UserError, match="has no revision 'v3'; expected a branch, a tag or a commit"):
        hub.download(NAME, "v3", wanted())


def test_a_broken_connection_is_gone_on_with(stand_in, hub, monkeypatch):
    """Within a download by the client, and by the next start when that gave up."""
    import time

    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # the client writes nothing less
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    content = {"config.json": b"{}", "model.safetensors": BODY}
    stand_in.add(NAME, content)
    stand_in.cuts["model.safetensors"] = [4000] + [0] * 6
    with pytest.raises(UserError, match=r"cannot be reached|Name an existing file"):
        hub.download(NAME, None, wanted())
    stand_in.requests.clear()
    stand_in.cuts["model.safetensors"] = [3000]
    folder = hub.download(NAME, None, wanted())
    assert (folder / "model.safetensors").read_bytes() == BODY
    ranges = [given for method, path, given in stand_in.requests if method == "GET" and path.endswith(".safetensors")]
    assert ranges == ["bytes=4000-", "bytes=7000-"]
    assert not [path for path in Path(hub.directory).rglob("*.incomplete")]


def test_a_partial_file_of_something_else_is_not_believed(stand_in, hub):
    import hashlib

    stand_in.add(NAME, {"config.json": b"{}", "model.safetensors": BODY})
    blobs = Path(hub.directory) / "models--someone--some-model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(BODY).hexdigest()}.partial.incomplete").write_bytes(b"x" * 3000)
    with pytest.raises(UserError, match=r"model.safetensors: an interrupted download was not what the hub has"):
        hub.download(NAME, None, wanted())
    folder = hub.download(NAME, None, wanted())
    assert (folder / "model.safetensors").read_bytes() == BODY


def test_the_cache_serves_without_the_network(stand_in, hub):
    stand_in.add(NAME, {"config.json": b"{}", "model.safetensors.index.json": index_of(*SHARDS), **SHARDS})
    folder = hub.download(NAME, None, wanted())
    away = Hub("http://127.0.0.1:9", directory=hub.directory)
    assert away.download(NAME, None, wanted()) == folder
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model-2.safetensors, and the hub cannot be reached"):
        away.download(NAME, None, wanted())
    stand_in.requests.clear()
    assert hub.download(NAME, None, wanted()) == folder
    assert (folder / "model-2.safetensors").read_bytes() == SHARDS["model-2.safetensors"]
    assert "model-1.safetensors" not in stand_in.fetched()


def test_weights_that_only_the_hub_knows_are_told_offline(stand_in, hub):
    stand_in.add(
        NAME, {"config.json": b"{}", "model.safetensors": BODY, "a-Q8_0.gguf": BODY[1:], "a-Q4_0.gguf": BODY[2:]}
    )
    folder = hub.download(NAME, None, wanted())
    assert hub.download(NAME, None, wanted(quant="Q4_0")).name == "a-Q4_0.gguf"
    away = Hub("http://127.0.0.1:9", directory=hub.directory)
    assert away.download(NAME, None, wanted(quant="Q4_0")).name == "a-Q4_0.gguf"
    with pytest.raises(UserError, match=r"holds 'Q8_0'; there are: Q4_0. The hub cannot be reached, so only"):
        away.download(NAME, None, wanted(quant="Q8_0"))
    (folder / "model.safetensors").unlink()
    (folder / "a-Q4_0.gguf").unlink()
    with pytest.raises(UserError, match="lacks its weights, and the hub cannot be reached"):
        away.download(NAME, None, wanted())
    assert away.download(NAME, None, wanted(load_format="dummy")) == folder


def test_without_hub_and_cache_the_sentence_says_both(tmp_path):
    with pytest.raises(UserError, match=r"http://127.0.0.1:9 cannot be reached, and .*holds no whole copy"):
        Hub("http://127.0.0.1:9", directory=str(tmp_path)).download(NAME, None, wanted())


def test_who_may_not_read_it_is_told_what_to_do(stand_in, hub):
    stand_in.add(NAME, {"config.json": b"{}", "model.safetensors": BODY})
    stand_in.gated.add(NAME)
    with pytest.raises(UserError, match=rf"is gated. Accept its conditions at {stand_in.endpoint}/{NAME}.*--hf-token"):
        hub.download(NAME, None, wanted())
    stand_in.gated.clear()
    stand_in.tokens[NAME] = "word"
    with pytest.raises(UserError, match=r"has no such model, or not for this token.*--hf-token"):
        hub.download(NAME, None, wanted())
    with pytest.raises(UserError, match="has no such model"):
        hub.download("no/such", None, wanted())
    allowed = Hub(stand_in.endpoint, "word", hub.directory)
    folder = allowed.download(NAME, None, wanted())
    assert hub.download(NAME, None, wanted()) == folder, "what is in the cache needs no token"
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no such model, or not for this token"):
        hub.download(NAME, None, wanted())
    assert (allowed.download(NAME, None, wanted()) / "model.safetensors").read_bytes() == BODY


def test_a_full_disk_is_told_before_the_download(stand_in, hub, monkeypatch):
    import shutil
    from collections import namedtuple

    stand_in.add(NAME, {"config.json": b"{}", "model.safetensors": BODY})
    usage = namedtuple("usage", "total used free")(0, 0, 4000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"to be downloaded, and .* has room for .*--download-dir"):
        hub.download(NAME, None, wanted())
    assert "model.safetensors" not in stand_in.fetched()


def test_the_bar_counts_bytes(stand_in, hub, capsys):
    stand_in.add(NAME, {"config.json": b"{}", "model.safetensors": BODY})
    shown = Hub(hub.endpoint, directory=hub.directory, progress=True)
    shown.download(NAME, None, wanted())
    said = capsys.readouterr().err
    assert f"Downloading {NAME}" in said and "10.0k/10.0k" in said and "B/s" in said


def test_the_token_stays_with_the_hub(stand_in, hub, tmp_path, monkeypatch):
    """A file that lies with somebody else is asked for there without the token."""
    import huggingface_hub
    from huggingface_hub import file_download

    found = huggingface_hub.HfFileMetadata(
        commit_hash="c", etag="e", location="http://elsewhere/x", size=1, xet_file_data=None
    )
    seen = {}
    monkeypatch.setattr(file_download, "http_get", lambda url, stream, *, headers, **_: seen.update(headers))
    source = hub_transfer.Source(NAME, "c", stand_in.endpoint, "word", tmp_path)
    for location, is_sent in (("http://elsewhere/x", False), (stand_in.endpoint + "/x", True)):
        there = huggingface_hub.HfFileMetadata(
            commit_hash="c", etag=f"e{is_sent}", location=location, size=1, xet_file_data=found.xet_file_data
        )
        seen.clear()
        hub_transfer._resume(source, "x", f"{stand_in.endpoint}/y", there, object)
        assert ("authorization" in seen) == is_sent


def test_a_hub_name_becomes_its_snapshot(registry, stand_in, tmp_path, tiny_llama):
    files = {path.name: path.read_bytes() for path in tiny_llama.iterdir()}
    stand_in.add(NAME, files, revision="v1")
    stand_in.tokens[NAME] = "word"
    environ = {"HF_ENDPOINT": stand_in.endpoint, "HF_TOKEN": "word"}
    settings = {"device": "cpu", "download_dir": str(tmp_path), "revision": "v1"}
    done = resolve({"model": NAME, **settings}, context="serve", registry=registry, environ=environ)
    model = done.engine.model
    assert Path(model.model).name == commit_of(NAME, "v1") and model.served_names == (NAME,)
    assert done.manifest.tokenizer.directory == model.model


def test_downloading_imports_no_torch(stand_in, tmp_path):
    stand_in.add(NAME, {"config.json": b"{}", "model.safetensors": BODY})
    code = (
        "from core_config.locating.hub import Hub; from core_config.locating.hub_files import Wanted\n"
        "Hub(sys.argv[1], directory=sys.argv[2]).download(sys.argv[3], None, Wanted(sys.argv[3]))"
    )
    run_torch_free(code, stand_in.endpoint, str(tmp_path), NAME)


def test_a_local_directory_of_ggufs(registry, tmp_path):
    for name in GGUFS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")

    def problem(ref):
        with pytest.raises(UserError) as caught:
            resolve({"model": ref, "device": "cpu"}, context="serve", registry=registry, environ={})
        return str(caught.value)

    assert str(tmp_path / "some-Q4_K_S.gguf") in problem(f"{tmp_path}:q4_k_s")  # chosen, and no whole file
    assert str(tmp_path / GGUFS[5]) in problem(f"{tmp_path}:Q8_0")
    assert f"holds 7 GGUF models; name one as '{tmp_path}:WORD'" in problem(str(tmp_path))
    assert "is a file, of which ':Q8_0' chooses nothing" in problem(f"{tmp_path / GGUFS[0]}:Q8_0")
