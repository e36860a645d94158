"""Parts of receipts by themselves: chains, files of receipts, signatures, digests of weights, given tokens of answers."""

import json
import os
import secrets

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from core.api.errors import UserError
from core_commands.replay.verify import differences
from core_observers.receipts.chain import BLOCK, Chain, first_other_block
from core_observers.receipts.receipt import (
    ChoiceFact,
    IssuedReceipt,
    Receipt,
    WeightsFact,
    opening_bytes,
    read_receipts,
    seal_of,
)
from core_observers.receipts.signing import read_key
from core_observers.receipts.weights import WeightsDigest

OPENING = bytes(range(32))
RECEIPT = Receipt(
    version="1",
    numerics="n",
    instruction_set="i",
    weights=WeightsFact("ab", "whole"),
    tokenizer="t",
    template="c",
    plugins=["p"],
    sampling={"seed": 1},
    num_prompt_tokens=3,
    prompt="00000000",
    choices=[ChoiceFact(0, 1, "stop", "11111111", "22")],
    created=5,
)


def test_a_chain_depends_on_every_token_its_order_the_choice_and_the_opening():
    tokens = list(range(40))

    def end(ids, opening=OPENING, choice=0):
        return Chain.opened(opening).extend([7]).choice(choice).extend(ids)

    plain = end(tokens)
    assert end(list(tokens)).end == plain.end
    assert len({end(t).end for t in (tokens, tokens[:-1], tokens[::-1], [*tokens[:-1], 0])} | {plain.end}) == 4
    assert plain.end not in (end(tokens, secrets.token_bytes(32)).end, end(tokens, choice=1).end)


@pytest.mark.parametrize("place", [0, 15, 16, 39])
def test_marks_find_a_changed_token_to_sixteen(place):
    tokens = list(range(40))
    changed = [*tokens[:place], 999, *tokens[place + 1 :]]
    marks = [Chain.opened(OPENING).extend(ids).marks for ids in (tokens, changed)]
    assert first_other_block(*marks) == place // BLOCK
    assert first_other_block(marks[0], marks[0]) is None
    assert first_other_block(marks[0], marks[0][:8]) == 1


def test_a_receipt_is_found_in_every_form_it_is_kept_in():
    issued = IssuedReceipt(RECEIPT, "aa" * 32)
    forms = {
        "alone": (RECEIPT, ""),
        "with its opening": (issued, "aa" * 32),
        "in an answer": ({"id": "x", "choices": [], "receipt": issued}, "aa" * 32),
        "of several prompts": ({"receipt": [issued, issued]}, "aa" * 32),
    }
    for name, (form, opening) in forms.items():
        found = read_receipts(msgspec.json.encode(form), name)
        assert {one for _, one in found} == {opening}
        assert all(receipt == RECEIPT for receipt, _ in found)


BAD = [
    b"",
    b"{",
    b"[]",
    b"3",
    b"null",
    b'"text"',
    b'{"receipt": 5}',
    b'{"receipt": {"receipt": {}}}',
    b"[" * 100_000,
    b"\xff\xfe",
    json.dumps({"seal": "", "format": 1}).encode(),
    json.dumps({"seal": "", "format": 2}).encode(),
    msgspec.json.encode(RECEIPT).replace(b'"created":5', b'"created":"x"'),
    msgspec.json.encode(RECEIPT).replace(b'"created"', b'"later"'),
    msgspec.json.encode(RECEIPT)[:-5],
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_anything_else_is_refused_with_a_sentence(data):
    with pytest.raises(UserError, match=r"^some file: "):
        read_receipts(data, "some file")


@pytest.mark.parametrize("text", ["", "zz" * 32, "aa" * 31, "ä" * 64])
def test_an_opening_is_32_bytes(text):
    with pytest.raises(UserError, match="64 hex digits"):
        opening_bytes(text)


def test_the_seal_covers_every_field():
    seal = seal_of(RECEIPT, OPENING)
    plain = msgspec.to_builtins(RECEIPT)
    for name in set(plain) - {"seal", "signature", "format"}:
        changed = plain[name] + 1 if isinstance(plain[name], int) else None
        if changed is None:
            changed = {"weights": {"digest": "b", "kind": "whole"}, "plugins": [], "sampling": {}, "choices": []}.get(
                name, "x"
            )
        other = msgspec.convert(plain | {name: changed}, Receipt)
        assert seal_of(other, OPENING) != seal, name
    assert seal_of(RECEIPT, bytes(32)) != seal


def test_a_shared_secret_signs_and_checks(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(secrets.token_bytes(40))
    other = tmp_path / "other"
    other.write_bytes(secrets.token_bytes(40))
    signature = read_key(str(path)).sign(b"text")
    assert read_key(str(path)).check(b"text", signature) == ""
    for key, text, said in ((other, b"text", signature), (path, b"other", signature), (path, b"text", "")):
        assert read_key(str(key)).check(text, said)
    assert "ed25519" in read_key(str(path)).check(b"text", "ed25519:00")


def test_a_key_pair_signs_and_its_public_part_checks(tmp_path):
    pair = Ed25519PrivateKey.generate()
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "private").write_bytes(pair.private_bytes(serialization.Encoding.PEM, *private))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "public").write_bytes(pair.public_key().public_bytes(serialization.Encoding.PEM, public))
    signature = read_key(str(tmp_path / "private")).sign(b"text")
    checker = read_key(str(tmp_path / "public"))
    assert checker.check(b"text", signature) == ""
    assert checker.check(b"texT", signature) and checker.check(b"text", "ed25519:zz")
    with pytest.raises(UserError, match="public key cannot sign"):
        checker.sign(b"text")


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000, b"-----BEGIN PRIVATE KEY-----\nxx\n"])
def test_an_unfit_key_file_is_a_sentence(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(UserError, match="--receipt-key"):
        read_key(str(path))


def test_a_missing_key_file_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_key(str(tmp_path / "none"))


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(secrets.token_bytes(9 << 20))
    (folder / "b.safetensors").write_bytes(secrets.token_bytes(100))
    return folder


def test_weights_are_sampled_until_they_are_read_whole(model, tmp_path):
    digest = WeightsDigest(str(model), tmp_path / "cache")
    assert digest.fact().kind == "sampled"
    steps = 1
    while digest.step():
        steps += 1
    assert steps == 4 and digest.fact().kind == "whole"
    again = WeightsDigest(str(model), tmp_path / "cache")
    assert again.is_whole and again.fact() == digest.fact()
    assert again.fact("v2").update == "v2"


def test_a_byte_that_no_sample_sees_changes_the_whole_digest(model, tmp_path):
    before = WeightsDigest(str(model), tmp_path / "cache")
    whole = before.finish()
    path = model / "a.safetensors"
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert before.fact().kind == "sampled"  # the files are not those that this engine has read
    after = WeightsDigest(str(model), tmp_path / "cache")
    assert after.sampled == before.sampled
    assert after.finish().digest != whole.digest


def test_without_files_nothing_is_known_and_a_broken_cache_costs_reading_again(model, tmp_path):
    assert WeightsDigest("some/name", tmp_path).finish().kind == "unknown"
    whole = WeightsDigest(str(model), tmp_path).finish()
    for content in (b"{", b'{"files": 3}', b""):
        (tmp_path / "weight-digests.json").write_bytes(content)
        assert WeightsDigest(str(model), tmp_path).finish() == whole
    (tmp_path / "file").write_text("")
    assert WeightsDigest(str(model), tmp_path / "file").finish() == whole


def test_answers_differ_by_their_content_alone():
    said = {"id": "a", "choices": [{"message": {"content": "one two", "tool_calls": None}}], "usage": {"x": 1}}
    same = {"id": "b", "choices": [{"message": {"content": "one two"}}], "receipt": {}}
    other = {"choices": [{"message": {"content": "one too"}}]}
    assert list(differences(said, same)) == []
    [(path, left, _)] = differences(said, other)
    assert path == ".choices[0].message.content" and "from character 0" in left
