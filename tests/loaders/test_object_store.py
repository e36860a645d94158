"""Models in buckets: S3 against moto's server; Google's and Azure's clients against stand-ins of the calls that are used."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from core.api.errors import CheckpointError, UserError
from core_loaders.object_store import loader as loader_module
from core_loaders.object_store import manifest as object_store
from core_loaders.object_store.loader import ObjectStoreLoader
from core_loaders.object_store.manifest import ObjectStoreArguments
from core_loaders.object_store.store import ObjectChanged, StoredObject
from core_loaders.object_store.stream import spans_of, stream
from core_runtime.specs.checkpoint import FileFacts
from tests.loaders.blob_stand_ins import serving_blobs
from tests.loaders.same_tensors import check_same
from tests.torch_free import run_torch_free

KEYS = {
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def s3():
    """(address, client) of an empty S3."""
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        client = boto3.client(
            "s3", endpoint_url=address, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
        )
        client.create_bucket(Bucket="models")
        yield address, client
    finally:
        server.stop()


@pytest.fixture
def bucket(s3, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return s3


def put(client, directory, prefix):
    for path in directory.iterdir():
        client.put_object(Bucket="models", Key=f"{prefix}/{path.name}", Body=path.read_bytes())


def opened(address, tmp_path, **options):
    return ObjectStoreLoader(ObjectStoreArguments(endpoint=address, cache=str(tmp_path / "cache"), **options))


class Memory:
    """A bucket that is a mapping."""

    def __init__(self, objects):
        self.objects = objects
        self.reads = []

    def list(self, prefix):
        return [StoredObject(key, len(body), str(hash(body))) for key, body in sorted(self.objects.items())]

    def read(self, found, begin, end):
        self.reads.append((found.key, end - begin))
        body = self.objects.get(found.key, b"")
        if str(hash(body)) != found.version:
            raise ObjectChanged(found.key)
        return body[begin:end]


@pytest.fixture
def memory(tiny_llama, tmp_path, monkeypatch):
    """(bucket, loader, reference) of the model in memory."""
    bucket = Memory({f"m/{path.name}": path.read_bytes() for path in tiny_llama.iterdir()})
    monkeypatch.setattr(loader_module, "open_bucket", lambda *_: bucket)
    return bucket, opened(None, tmp_path), "s3://b/m"


def sharded(source, target):
    """The same model in three files with an index."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    tensors = load_file(source / "model.safetensors")
    weights = {}
    for number in range(3):
        file = f"model-{number}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[number::3]}
        save_file(part, target / file)
        weights |= dict.fromkeys(part, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        (target / name).write_bytes((source / name).read_bytes())
    return target


def test_the_same_tensors_from_s3(bucket, tiny_llama, tmp_path):
    address, client = bucket
    model = sharded(tiny_llama, tmp_path / "model")
    put(client, model, "some/model")
    loader = opened(address, tmp_path, part_bytes=32_768, memory_limit=100_000, concurrency=3)
    manifest = loader.resolve("s3://models/some/model/")
    check_same(loader, manifest, model)
    assert manifest.config["model_type"] == "llama" and manifest.generation["eos_token_id"] == 2
    assert (Path(manifest.tokenizer.directory) / "tokenizer.json").read_bytes() == (
        model / "tokenizer.json"
    ).read_bytes()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_changed_object_is_a_sentence(bucket, tiny_llama, tmp_path):
    address, client = bucket
    put(client, tiny_llama, "changing")
    loader = opened(address, tmp_path)
    manifest = loader.resolve("s3://models/changing")
    content = (tiny_llama / "model.safetensors").read_bytes()
    client.put_object(Bucket="models", Key="changing/model.safetensors", Body=content[:-4] + b"abcd")
    with pytest.raises(CheckpointError, match=r"s3://models/changing/model.safetensors: has changed since its header"):
        list(loader.iter(manifest, list(manifest.tensors)))
    client.delete_object(Bucket="models", Key="changing/model.safetensors")
    with pytest.raises(CheckpointError, match="has changed since its header"):
        list(loader.iter(manifest, list(manifest.tensors)))


def test_a_changed_configuration_is_not_taken_from_the_cache(memory):
    bucket, loader, ref = memory
    before = loader.resolve(ref)
    bucket.reads.clear()
    assert loader.resolve(ref) == before
    assert {key for key, _ in bucket.reads} == {"m/model.safetensors"}, "small files come from the cache"
    bucket.objects["m/config.json"] = json.dumps({**before.config, "rope_theta": 77.0}).encode()
    assert loader.resolve(ref).config["rope_theta"] == 77.0


def test_only_headers_and_what_is_asked_for_are_read(memory):
    bucket, loader, ref = memory
    manifest = loader.resolve(ref)
    assert dict(bucket.reads)["m/model.safetensors"] <= 1 << 16
    bucket.reads.clear()
    name = "model.norm.weight"
    ((_, tensor),) = loader.iter(manifest, [name])
    assert bucket.reads == [("m/model.safetensors", manifest.tensors[name].nbytes)] and tensor.shape == (64,)


def test_what_is_wrong_with_a_model_is_told(memory, tmp_path):
    bucket, loader, ref = memory
    whole = bucket.objects["m/model.safetensors"]
    for content, told in (
        (b"", r"b/m/model.safetensors: announces a header of 0 bytes in a file of 0"),
        (b"\xff" * 64, "announces a header"),
        (whole[:9000], "lies at bytes"),
    ):
        bucket.objects["m/model.safetensors"] = content
        with pytest.raises(CheckpointError, match=told):
            loader.resolve(ref)
    bucket.objects["m/model.safetensors.index.json"] = b'{"weight_map": {"a": "../x.safetensors"}}'
    with pytest.raises(CheckpointError, match=r"s3://b/m/../x.safetensors: is missing, though model.safetensors.index"):
        loader.resolve(ref)
    del bucket.objects["m/model.safetensors.index.json"], bucket.objects["m/model.safetensors"]
    with pytest.raises(CheckpointError, match=r"there is no .safetensors file next to config.json"):
        loader.resolve(ref)
    del bucket.objects["m/config.json"]
    with pytest.raises(
        CheckpointError, match=r"there is no config.json in this folder, which holds: generation_config"
    ):
        loader.resolve(ref)
    (tmp_path / "file").write_bytes(b"")
    bucket.objects["m/config.json"] = b"{}"
    with pytest.raises(CheckpointError, match=r"cannot be written .*--model-loader-extra-config.cache"):
        ObjectStoreLoader(ObjectStoreArguments(cache=str(tmp_path / "file" / "x"))).resolve(ref)


def test_a_store_that_does_not_answer_is_told(bucket, tmp_path):
    address, _ = bucket
    for place, ref, told in (
        (address, "s3://no-bucket/x", r"cannot be read \(NoSuchBucket.*Check the name, the network, the credentials"),
        ("http://127.0.0.1:9", "s3://models/x", r"cannot be read \(EndpointConnectionError"),
        (address, "s3://", "expected s3://, gs:// or az://, a bucket"),
    ):
        with pytest.raises(CheckpointError, match=told):
            opened(place, tmp_path).resolve(ref)


def test_resolving_imports_no_torch(bucket, tiny_llama, tmp_path):
    address, client = bucket
    put(client, tiny_llama, "plain")
    code = (
        "from core_loaders.object_store.loader import ObjectStoreLoader\n"
        "from core_loaders.object_store.manifest import ObjectStoreArguments\n"
        "loader = ObjectStoreLoader(ObjectStoreArguments(endpoint=sys.argv[1], cache=sys.argv[2]))\n"
        "assert loader.resolve('s3://models/plain').tensors"
    )
    run_torch_free(code, address, str(tmp_path))


def test_references_are_claimed_by_their_scheme():
    for ref in ("s3://b/m", "gs://b/m", "az://c/m"):
        assert object_store.core_claim(FileFacts(ref, None, False, ("m",)))
    for ref in ("store://b/m", "/s3/m", "s3/m"):
        assert object_store.core_claim(FileFacts(ref, None, False, ("m",))) is None


def test_a_missing_client_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UserError, match=r"needs boto3.*pip install 'core-engine-loaders\[object-store\]'"):
        opened(None, tmp_path).resolve("s3://models/x")


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_the_same_tensors_through_other_clients(scheme, tiny_llama, tmp_path, monkeypatch):
    """Against a stand-in of the few calls that are used, not against the provider's own emulator."""
    pytest.importorskip("google.cloud.storage" if scheme == "gs" else "azure.storage.blob")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    objects = {f"some/model/{path.name}": path.read_bytes() for path in tiny_llama.iterdir()}
    objects["some/model/other/config.json"] = b"{}"
    with serving_blobs("models", objects) as address:
        loader = opened(address, tmp_path, part_bytes=65_536)
        manifest = loader.resolve(f"{scheme}://models/some/model")
        check_same(loader, manifest, tiny_llama)
        objects["some/model/model.safetensors"] += b"x"
        with pytest.raises(
            CheckpointError, match=rf"{scheme}://models/some/model/model.safetensors: has changed since"
        ):
            list(loader.iter(manifest, list(manifest.tensors)))


def test_an_azure_account_must_be_named(tmp_path):
    pytest.importorskip("azure.storage.blob")
    with pytest.raises(UserError, match=r"az://models: the account is not named.*blob.core.windows.net"):
        opened(None, tmp_path).resolve("az://models/x")


def test_reading_ahead_is_bounded_and_parallel():
    """However slow the consumer is: no more bytes than the limit are on their way, and several requests at once."""
    from core_runtime.specs.checkpoint import TensorInfo

    sizes = [3000, 500, 500, 9000, 100, 4000, 2500, 2500]
    infos, offset = [], 0
    for number, size in enumerate(sizes):
        infos.append(TensorInfo(str(number), (size,), "U8", size, 0, offset, str(number)))
        offset += size
    content = bytes(index % 251 for index in range(offset))
    lock = threading.Lock()
    now = {"requests": 0, "most": 0, "asked": 0, "given": 0, "ahead": 0}

    def read(file, begin, end):
        with lock:
            now["requests"] += 1
            now["most"] = max(now["most"], now["requests"])
            now["asked"] += end - begin
            now["ahead"] = max(now["ahead"], now["asked"] - now["given"])
        time.sleep(0.005)
        with lock:
            now["requests"] -= 1
        return content[begin:end]

    spans = spans_of(infos, 2000)
    assert [len(span.tensors) for span in spans] == [1, 2, 1, 1, 1, 1, 1]
    for span, buffer in stream(spans, read, part_bytes=2000, connections=4, memory_limit=10_000):
        assert buffer == content[span.begin : span.end]
        now["given"] += span.nbytes
    assert 1 < now["most"] <= 4 and now["ahead"] <= 10_000 and now["asked"] == offset


def test_an_end_before_the_last_tensor_stops_the_requests(memory):
    _, loader, ref = memory
    manifest = loader.resolve(ref)
    coming = loader.iter(manifest, list(manifest.tensors))
    _, tensor = next(coming)
    assert isinstance(tensor, torch.Tensor)
    coming.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("object-store")]


def test_a_pin_survives_the_manifest():
    from core_loaders.object_store.loader import _pinned, _unpinned
    from core_loaders.object_store.store import place_of

    place = place_of("s3://b/m")
    found = StoredObject("m/with#mark.safetensors", 0, '"etag"')
    assert _unpinned(place, _pinned(place, found)) == found
