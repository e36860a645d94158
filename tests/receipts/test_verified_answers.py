"""Answers of a real engine, their receipts, and what `core verify` says of both."""

import copy
import json
import random
import re
from typing import Any

import pytest
from msgspec.json import encode

from core import LLM, SamplingParams
from core.commands.main import main
from core_commands.cli.verify import VerifyOptions, _question, _verdict
from core_commands.client.endpoint import whole
from tests.receipts import checking
from tests.receipts.test_receipt_parts import RECEIPT

SEEDED = {
    "messages": [{"role": "user", "content": "the fox"}],
    "max_tokens": 24,
    "temperature": 0.0,
    "ignore_eos": True,
}


TEXT = {"prompt": "fox", "max_tokens": 12, "temperature": 0.9, "seed": 3, "ignore_eos": True}


async def in_session(engine, folder):
    """Ask twice in a session; return what `core verify` says of both answers, and of one after bytes that are no text."""
    first = {"role": "user", "content": "the fox"}
    verdicts = []
    for name, more in (
        ("good", {"structured_outputs": {"regex": "[a-z]{8}"}}),
        ("odd", {"seed": 5, "temperature": 1.3}),
    ):
        messages = [first]
        for turn in ({**more, "max_tokens": 24}, {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}):
            body = {"messages": messages, "session": name, **turn}
            answer = await checking.ask(engine, checking.CHAT, body)
            for file, content in (("body", body), ("answer", answer)):
                (folder / file).write_bytes(encode(content))
            question = _question(str(folder / "answer"), VerifyOptions(request=str(folder / "body")))
            assert "session" not in question.body
            verdicts.append(await _verdict(engine, question))
            said = answer["choices"][0]["message"]["content"]
            messages = [*messages, {"role": "assistant", "content": said}, first]
    return verdicts


@pytest.fixture(scope="module")
def found(tiny_llama, tmp_path_factory):
    """Everything that one engine says; each test looks at a part of it."""
    folder = tmp_path_factory.mktemp("session")
    results: dict[str, Any] = {}
    with LLM(model=str(tiny_llama), max_model_len=512) as llm:
        params = SamplingParams(**{name: value for name, value in TEXT.items() if name != "prompt"})
        [plain] = llm.generate(TEXT["prompt"], params, use_tqdm=False)
        [offline] = llm.generate(TEXT["prompt"], params, use_tqdm=False, receipt=True)

    async def work(engine):
        rng = random.Random(4)
        rows = []
        for _ in range(14):
            path, body = checking.random_request(rng)
            answer = await checking.ask(engine, path, body)
            rows.append((path, body, await checking.verdict(engine, path, body, checking.receipts_of(answer), answer)))
        results["random"] = rows
        stream = json.dumps(SEEDED | {"stream": True}).encode()
        async with engine._endpoint.ask("POST", checking.CHAT, stream, {"X-Receipt": "1"}) as answer:
            events = [line for line in (await whole(answer)).split(b"\n") if line.startswith(b"data: {")]
        last = json.loads(events[-1].removeprefix(b"data: "))
        results["stream"] = await checking.verdict(engine, checking.CHAT, SEEDED, checking.receipts_of(last))
        body = SEEDED | {"return_token_ids": True}
        answer = await checking.ask(engine, checking.CHAT, body)
        [(receipt, opening)] = checking.receipts_of(answer)
        results["forged"] = [
            (name, await checking.verdict(engine, checking.CHAT, body, [(forged, opening)]))
            for name, forged in checking.forgeries(receipt, opening)
        ]
        results["other opening"] = await checking.verdict(engine, checking.CHAT, body, [(receipt, "ab" * 32)])
        results["other prompt"] = await checking.verdict(
            engine, checking.CHAT, body | {"messages": [{"role": "user", "content": "the fax"}]}, [(receipt, opening)]
        )
        results["session"] = await in_session(engine, folder)
        own = offline.receipt
        kept = await checking.verdict(engine, checking.TEXT, TEXT, [(own.receipt, own.opening)])
        results["llm"] = plain.receipt, own.receipt.weights.kind, kept.code
        edited = copy.deepcopy(answer)
        edited["choices"][0]["message"]["content"] += "!"
        results["edited"] = await checking.verdict(engine, checking.CHAT, body, [(receipt, opening)], edited)
        results["version"] = await checking.verdict(
            engine, checking.CHAT, body, [(copy.copy(receipt), opening)], answer, ("version", "plugins")
        )
        # A receipt of an answer with one other token, as an engine with a fault would have issued it.
        _, [computed] = await engine.compute(checking.CHAT, body)
        index, tokens, reason = computed.answers[0]
        tokens = [*tokens]
        async for _, rows in engine.after(computed, 0, tokens[:20], logprobs=5):
            tokens[20] = list(rows[0])[1]  # the second likeliest
            break
        computed.answers = [(index, tokens, reason)]
        issuer = engine.context.receipts.issuer
        wrong = issuer.issue(computed.request, computed.answers)
        said = {"choices": [{"token_ids": tokens}]}
        results["other token"] = await checking.verdict(
            engine, checking.CHAT, body | {"seed": computed.request.seed}, [(wrong.receipt, wrong.opening)], said
        )

    checking.run_on_engine(["--model", str(tiny_llama), "--max-model-len", "512"], work)
    return results


def test_answers_of_every_kind_are_equal_to_the_bit(found):
    assert [(path, body, verdict.sentence) for path, body, verdict in found["random"] if verdict.code] == []
    assert {path for path, _, _ in found["random"]} == {
        checking.CHAT,
        checking.TEXT,
        checking.RESPONSES,
        checking.MESSAGES,
    }


def test_a_stream_has_its_receipt_in_the_last_chunk(found):
    assert found["stream"].code == 0


def test_every_forgery_is_named(found):
    wrong = [
        (name, verdict)
        for name, verdict in found["forged"]
        if not verdict.sentence.startswith(name) or not verdict.code
    ]
    assert wrong == [] and len(found["forged"]) == 46


def test_what_another_installation_would_compute_cannot_be_checked(found):
    codes = {name: verdict.code for name, verdict in found["forged"]}
    assert codes["numerics"] == codes["instruction_set"] == 2
    assert codes["sampling.top_p"] == codes["tokenizer"] == 1


def test_another_key_or_prompt_is_named(found):
    assert (found["other opening"].code, found["other opening"].sentence[:8]) == (1, "opening:")
    assert (found["other prompt"].code, found["other prompt"].sentence[:7]) == (1, "prompt:")


def test_an_edited_answer_is_named_with_the_place(found):
    assert found["edited"].code == 1
    assert found["edited"].sentence.startswith("answer.choices[0].message.content: ")


def test_fields_may_be_excepted(found):
    assert found["version"].code == 0


def test_the_first_token_that_differs_is_named_with_its_margin(found):
    assert found["other token"].code == 1
    assert re.fullmatch(
        r"choice 0: the first token that differs is one of 16 to 23\. "
        r"It is token 20: \d+ is known, \d+ computed, margin \d[\d.e-]*\.",
        found["other token"].sentence,
    )


def test_answers_in_a_session_are_verified_where_its_texts_have_the_tokens_that_it_kept(found):
    good, better, odd, odder = found["session"]
    assert [one.code for one in (good, better, odd)] == [0, 0, 0], found["session"]
    assert odder.code == 2
    assert odder.sentence.startswith("session: the server went on with tokens that it kept, and not with those of the")


def test_llm_gives_receipts_that_verify(found):
    assert found["llm"] == (None, "whole", 0)


MISTAKES = {
    "no file": (["verify"], "receipt is missing"),
    "no body": (["verify", "{answer}"], "--request BODY is missing"),
    "no such file": (["verify", "{folder}/none", "--request", "{body}"], "No such file"),
    "no receipt": (["verify", "{body}", "--request", "{body}"], "there is no receipt in it"),
    "no opening": (["verify", "{answer}", "--request", "{body}"], "--opening KEY is missing"),
    "bad opening": (["verify", "{answer}", "--request", "{body}", "--opening", "xyz"], "64 hex digits"),
    "kept elsewhere": (["verify", "{answer}", "--request", "{kept}", "--opening", "ab" * 32], "previous_response_id: "),
    "own drafts": (
        ["verify", "{answer}", "--request", "{body}", "--opening", "ab" * 32, "--speculative-config.method", "ngram"],
        "brings its own",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_sentences_and_exit_with_2(name, tmp_path, capfd):
    files = {part: tmp_path / part for part in ("answer", "body", "kept")}
    files["answer"].write_bytes(encode({"receipt": RECEIPT}))
    files["body"].write_text('{"prompt": "a"}')
    files["kept"].write_text('{"input": "a", "previous_response_id": "x"}')
    words, sentence = MISTAKES[name]
    assert main([word.format(folder=tmp_path, **files) for word in words]) == 2
    assert sentence in capfd.readouterr().err
