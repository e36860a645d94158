"""Vectors of whole engines, held against transformers' hidden states of the same random weights."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from core import LLM, PoolingParams
from core.api.errors import CheckpointError, ConfigError, RequestError
from core.api.pooling import Pooling
from core_frontend.api.pooling_params import LateChunkingParams
from core_runtime.executor.answers.pooled_state import KEPT, Pooled
from tests.families.oracle import load, reference

ENCODERS = ("bert", "xlm-roberta", "distilbert", "modernbert")
NO_BAR = {"use_tqdm": False}
SEPARATE = {"enable_prefix_caching": False}


@pytest.fixture(scope="module")
def hidden_of_llama():
    """float32 [T, H] of each prompt of the reference."""
    known = reference("llama")
    body = load(known.path, "llama").model
    with torch.inference_mode():
        return [body(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy() for ids in known.prompts]


def _llm(path, **settings):
    return LLM(str(path), dtype="float32", block_size=4, use_tqdm_on_load=False, **settings)


def _given(known):
    return [{"prompt_token_ids": ids} for ids in known.prompts]


def _unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _vectors(llm, prompts, **params):
    outputs = llm.encode(prompts, PoolingParams(**params), **NO_BAR)
    return [output.outputs.data.numpy() for output in outputs]


def _with_modules(source, directory, pooling, *, further=(), **text_settings):
    """A copy of a checkpoint with sentence-transformers' files."""
    shutil.copytree(source, directory)
    names = ["Transformer", "Pooling", *further]
    modules = []
    for index, name in enumerate(names):
        folder = "" if name == "Transformer" else f"{index}_{name}"
        modules.append({"idx": index, "path": folder, "type": f"sentence_transformers.models.{name}"})
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if text_settings:
        (directory / "sentence_bert_config.json").write_text(json.dumps(text_settings))
    return directory


@pytest.mark.parametrize("model_type", ENCODERS)
def test_encoders_equal_transformers(model_type):
    known = reference(model_type)
    settings = {"pooler_config": {"pooling_type": "MEAN", "normalize": True}}
    with _llm(known.path, **settings) as llm:
        means = _vectors(llm, _given(known))
        tokens = _vectors(llm, _given(known), task="token_embed", use_activation=False)
    for states, mean, each in zip(known.logits, means, tokens, strict=True):
        assert np.allclose(mean, _unit(states.numpy().mean(0)), atol=1e-4)
        assert np.allclose(each, states.numpy(), atol=2e-3)


@pytest.mark.parametrize("kind", ["cls", "last", "mean"])
def test_decoders_equal_transformers(kind, hidden_of_llama):
    known = reference("llama")
    with _llm(known.path, runner="pooling", pooler_config={"pooling_type": kind}) as llm:
        found = _vectors(llm, _given(known), use_activation=False)
        again = _vectors(llm, _given(known), use_activation=False)
    choose = {"cls": lambda h: h[0], "last": lambda h: h[-1], "mean": lambda h: h.mean(0)}[kind]
    for states, vector, second in zip(hidden_of_llama, found, again, strict=True):
        assert np.allclose(vector, choose(states), atol=2e-3)
        assert np.array_equal(vector, second)  # some of it from the prefix cache, where only the last token counts


def test_all_poolings_one_behind_the_other(tmp_path):
    known = reference("bert")
    modes = ["lasttoken", "mean", "cls", "max", "weightedmean", "mean_sqrt_len_tokens"]
    path = _with_modules(known.path, tmp_path / "model", {"pooling_mode": modes})
    with _llm(path) as llm:
        found = _vectors(llm, _given(known))
    for states, vector in zip(known.logits, found, strict=True):
        each = states.numpy()
        count = len(each)
        weights = np.arange(1, count + 1)[:, None]
        weighted = (each * weights).sum(0) / weights.sum()
        parts = [each[-1], each.mean(0), each[0], each.max(0), weighted, each.sum(0) / np.sqrt(count)]
        assert np.allclose(vector, np.concatenate(parts), atol=2e-3)


def test_switches_of_older_files_have_an_order_of_their_own(tmp_path):
    known = reference("bert")
    switches = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    path = _with_modules(known.path, tmp_path / "model", switches)
    with _llm(path) as llm:
        vector = _vectors(llm, _given(known)[:1])[0]
    states = known.logits[0].numpy()
    assert np.allclose(vector, np.concatenate([states[0], states.mean(0)]), atol=2e-3)


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_of_a_sequence_does_not_depend_on_chunks(kind):
    states = np.random.default_rng(4).standard_normal((37, 6)).astype(np.float32)
    whole = Pooled(Pooling((kind,)))
    whole.take(states, 0)
    parts = Pooled(Pooling((kind,)))
    for begin, end in ((0, 1), (1, 20), (20, 37)):
        parts.take(states[begin:end], begin)
    assert np.array_equal(whole.vector(37), parts.vector(37))


def test_texts_in_small_letters(tmp_path):
    path = _with_modules(
        reference("bert").path, tmp_path / "model", {"pooling_mode": "mean"}, max_seq_length=30, do_lower_case=True
    )
    with _llm(path) as llm:
        loud, small = (output.outputs.embedding for output in llm.embed(["SOME Text", "some text"], **NO_BAR))
    assert loud == small


def test_what_the_user_says_of_the_pooler():
    path = reference("bert").path
    asked = {"task": "token_embed", "dimensions": 8, "pooling_type": "MAX"}
    chunks = PoolingParams(late_chunking_params=LateChunkingParams(chunk_size=2))
    prompt = {"prompt_token_ids": [5, 6, 7]}
    with _llm(path, pooler_config=asked) as llm:
        tokens = llm.encode(prompt, **NO_BAR)[0].outputs.data
        embedded = llm.embed(prompt, lora_request=None, **NO_BAR)[0].outputs.data
        parts = llm.embed(prompt, pooling_params=chunks, **NO_BAR)[0]
        vector = _vectors(llm, [prompt], task="embed")[0]
        whole = _vectors(llm, [prompt], task="embed", dimensions=48, use_activation=False)[0]
        others = [prompt, {"prompt_token_ids": [5, 6]}]
        scores = llm.score(prompt, others, tokenization_kwargs=None, **NO_BAR)
        shorter = _vectors(llm, others[1:], task="token_embed")[0]
        cosines = llm.score(prompt, others, pooling_params=PoolingParams(task="embed"), **NO_BAR)
    assert tokens.shape == (3, 48) and np.array_equal(tokens, embedded)
    assert parts.outputs.data.shape == (2, 48) and len(parts.late_chunking.chunks) == 2
    assert np.allclose(vector, _unit(whole[:8]), atol=1e-6)
    late = [
        sum(max(float(one @ other) for other in document) for one in tokens.numpy())
        for document in (tokens.numpy(), shorter)
    ]
    assert [score.outputs.score for score in scores] == pytest.approx(late, abs=1e-5) and late[0] == pytest.approx(3.0)
    assert cosines[0].outputs.score == pytest.approx(1.0) and cosines[1].outputs.score < 1.0


def test_late_chunks(bert):
    ids = list(range(5, 12))
    chunks = PoolingParams(late_chunking_params=LateChunkingParams(chunk_size=3), use_activation=False)
    given = [{"prompt_token_ids": ids}, "a text in parts"]
    found, text = bert.encode(given, chunks, pooling_task="token_embed", **NO_BAR)
    each = _vectors(bert, given[:1], task="token_embed", use_activation=False)[0]
    expected = [each[begin : begin + 3].mean(0) for begin in (0, 3, 6)]
    assert np.allclose(found.outputs.data, np.stack(expected), atol=1e-5)
    parts = found.late_chunking.chunks
    assert [part.token_range for part in parts] == [(0, 3), (3, 6), (6, 7)] and parts[0].char_range is None
    assert np.array_equal(bert.embed(given, pooling_params=chunks, **NO_BAR)[0].outputs.data, found.outputs.data)
    written = [part.char_range for part in text.late_chunking.chunks if part.char_range]
    assert written[0][0] == 0 and written[-1][1] == len("a text in parts")


ASKED_REFUSED = {
    "task": ({"task": "classify"}, "this model serves embed, token_embed"),
    "size": ({"dimensions": 100}, "may have 1 to 48 numbers"),
    "classes": ({"logit_mean": 1.0}, "of classes, and this model gives vectors"),
}


@pytest.mark.parametrize("name", ASKED_REFUSED)
def test_what_the_user_cannot_say_of_the_pooler(name):
    asked, sentence = ASKED_REFUSED[name]
    with pytest.raises(ConfigError, match=sentence):
        _llm(reference("bert").path, pooler_config=asked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cls", "last", "mean", "max", "weightedmean"])
def test_chunks_planning_ahead_and_a_small_pool_change_no_bit(kind):
    known = reference("llama")
    settings = {"runner": "pooling", "pooler_config": {"pooling_type": kind}, **SEPARATE}
    with _llm(known.path, **settings) as llm:
        expected = _vectors(llm, _given(known))
    with _llm(known.path, max_num_batched_tokens=5, max_num_seqs=4, async_scheduling=True, **settings) as llm:
        found = _vectors(llm, _given(known))
    with _llm(known.path, max_model_len=64, num_gpu_blocks_override=18, max_num_seqs=4, **settings) as llm:
        crowded = _vectors(llm, _given(known) * 3)
    for vector, chunked, index in zip(expected, found, range(len(expected)), strict=True):
        assert np.array_equal(vector, chunked)
        assert np.array_equal(vector, crowded[index])


def test_files_of_sentence_transformers(tmp_path):
    known = reference("bert")
    path = _with_modules(
        known.path,
        tmp_path / "model",
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
        further=["Normalize"],
        max_seq_length=20,
    )
    with _llm(path) as llm:
        longest, shorter = llm.embed(_given(known), truncate_prompt_tokens=-1, **NO_BAR)
        assert len(longest.prompt_token_ids) == 20
        expected = _unit(known.logits[1].numpy().mean(0))
        assert np.allclose(shorter.outputs.embedding, expected, atol=1e-4)
        whole = known.prompts[0][:20]
        fits = llm.embed({"prompt_token_ids": whole}, **NO_BAR)[0]
        assert fits.outputs.embedding == longest.outputs.embedding
        with pytest.raises(RequestError, match="has 37 tokens, but the model takes at most 20"):
            llm.embed(_given(known), **NO_BAR)


def _dense(directory, *, weight, bias, activation):
    config = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": bias is not None}
    config["activation_function"] = f"torch.nn.modules.activation.{activation}"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    save_file(tensors, directory / "model.safetensors")


def test_dense_modules_and_named_prompts(tmp_path):
    known = reference("bert")
    further = ["Dense", "Dense", "Normalize"]
    path = _with_modules(known.path, tmp_path / "model", {"pooling_mode": "mean"}, further=further)
    generator = torch.Generator().manual_seed(3)
    first = torch.randn(20, 48, generator=generator)
    second = torch.randn(7, 20, generator=generator)
    bias = torch.randn(20, generator=generator)
    _dense(path / "2_Dense", weight=first, bias=bias, activation="Tanh")
    _dense(path / "3_Dense", weight=second, bias=None, activation="Identity")
    named = {"prompts": {"query": "Query: ", "document": ""}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(named))
    with _llm(path) as llm:
        vector = np.array(llm.embed(_given(known)[:1], **NO_BAR)[0].outputs.embedding)
        states = _vectors(llm, _given(known)[:1], task="token_embed")[0]
        prompted = [llm.embed("a text", prompt_name=name, **NO_BAR)[0].outputs.embedding for name in (None, "document")]
        plain = llm.embed("Query: a text", prompt_name="", **NO_BAR)[0].outputs.embedding
        with pytest.raises(RequestError, match=r"knows query, document\. Did you mean 'query'"):
            llm.embed("a text", prompt_name="querry", **NO_BAR)
        with pytest.raises(RequestError, match="vectors have 7 numbers"):
            _vectors(llm, _given(known)[:1], dimensions=8)
    expected = torch.tanh(known.logits[0].mean(0) @ first.T + bias) @ second.T
    assert np.allclose(vector, _unit(expected.numpy()), atol=1e-3)
    assert states.shape == (len(known.prompts[0]), 48)
    assert prompted[0] == plain and prompted[1] != plain


def test_a_damaged_dense_module_is_refused(tmp_path):
    path = _with_modules(reference("bert").path, tmp_path / "model", {"pooling_mode": "mean"}, further=["Dense"])
    _dense(path / "2_Dense", weight=torch.ones(5, 47), bias=None, activation="Identity")
    with pytest.raises(ConfigError, match="takes 47 numbers, but is given 48"):
        _llm(path)
    config = json.loads((path / "2_Dense" / "config.json").read_text())
    (path / "2_Dense" / "config.json").write_text(json.dumps(config | {"in_features": 48}))
    with pytest.raises(CheckpointError, match=r"expected linear.weight of shape \[5, 48\]"):
        _llm(path)


def test_dimensions_are_cut_before_the_length_is_made_1():
    known = reference("bert")
    given = _given(known)[:1]
    with _llm(known.path, pooler_config={"pooling_type": "CLS"}) as llm:
        whole = _vectors(llm, given, use_activation=False)[0]
        part = _vectors(llm, given, dimensions=8, normalize=True)[0]
    assert np.allclose(part, _unit(whole[:8]), atol=1e-6)
    assert part.shape == (8,)


def test_scores_are_cosines():
    known = reference("bert")
    first, second = _given(known)
    with _llm(known.path) as llm:
        one, other = (output.outputs.embedding for output in llm.embed([first, second], **NO_BAR))
        scores = [output.outputs.score for output in llm.score(first, [first, second], **NO_BAR)]
        with pytest.raises(RequestError, match="data_1 has 2 texts and data_2 1"):
            llm.score([first, second], [first], **NO_BAR)
    assert np.allclose(scores, [1.0, np.dot(one, other)], atol=1e-6)


REFUSED = {
    "size": ({"dimensions": 100_000}, "vectors have 48 numbers"),
    "no size": ({"dimensions": 0}, "dimensions is 0; expected an integer from 1 on"),
    "nothing left": ({"truncate_prompt_tokens": 0}, "leaves no text"),
    "too much": ({"truncate_prompt_tokens": 10**6}, "the model takes at most"),
    "two names": ({"use_activation": True, "normalize": False}, "leave one out"),
    "no task": ({"task": "token_embedd"}, "expected one of embed, token_embed"),
    "classes": ({"task": "classify"}, "serves 'embed' and 'token_embed'"),
    "chunks": ({"late_chunking_params": LateChunkingParams(2)}, "is of the task 'token_embed'"),
    "large chunk": ({"task": "token_embed", "late_chunking_params": LateChunkingParams(2**70)}, "of at most"),
    "no chunk": ({"task": "token_embed", "late_chunking_params": LateChunkingParams(0)}, "integer from 1 on"),
}


@pytest.fixture(scope="module")
def bert():
    with _llm(reference("bert").path) as llm:
        yield llm


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_parameters_are_refused(bert, name):
    params, sentence = REFUSED[name]
    with pytest.raises(RequestError, match=sentence):
        bert.encode({"prompt_token_ids": [1, 2, 3]}, PoolingParams(**params), **NO_BAR)


def test_other_uses_are_refused(bert):
    with pytest.raises(RequestError, match="gives vectors and no text"):
        bert.generate({"prompt_token_ids": [1]}, **NO_BAR)
    with pytest.raises(RequestError, match="The text is empty"):
        bert.embed({"prompt_token_ids": []}, **NO_BAR)
    assert bert.embed([], **NO_BAR) == []
    with pytest.raises(TypeError, match="embed has no argument 'pooling_task'"):
        bert.embed("a", pooling_task="embed", **NO_BAR)
    with pytest.raises(RequestError, match="prompt_name is 5; expected a name"):
        bert.embed("a", prompt_name=5, **NO_BAR)
    for priority, told in ((["x"], "priority is 'x'"), (3, "priority is a int"), ([1, 2], "2 entries for 1")):
        with pytest.raises(RequestError, match=told):
            bert.embed("a", priority=priority, **NO_BAR)
    with pytest.raises(RequestError, match="serves no adapters"):
        bert.embed("a", lora_request="an adapter", **NO_BAR)
    with _llm(reference("llama").path) as llm, pytest.raises(RequestError, match="--runner pooling"):
        llm.embed({"prompt_token_ids": [1]}, **NO_BAR)


MODULES_REFUSED = {
    "unknown switch": ({"pooling_mode_swirl": True}, [], "the pooling pooling_mode_swirl is not served"),
    "one of two": ({"pooling_mode": ["mean", "swirl"]}, [], "mean and swirl is not served"),
    "none": ({"pooling_mode_cls_token": False}, [], "of no kind is not served"),
    "unheard": ({"pooling_mode": "swirl"}, [], "the pooling swirl is not served"),
    "module": ({"pooling_mode": "mean"}, ["Swirl"], "models.Swirl' is not served"),
    "order": ({"pooling_mode": "mean"}, ["Normalize", "Dense"], "behind Normalize is not served"),
}


@pytest.mark.parametrize("name", MODULES_REFUSED)
def test_unknown_pooling_is_refused_by_name(tmp_path, name):
    pooling, further, sentence = MODULES_REFUSED[name]
    path = _with_modules(reference("bert").path, tmp_path / "model", pooling, further=further)
    with pytest.raises(ConfigError, match=sentence):
        _llm(path)


def test_impossible_settings_are_refused():
    llama = reference("llama").path
    with pytest.raises(ConfigError, match="nothing can be drafted for --runner pooling"):
        _llm(llama, runner="pooling", speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    with pytest.raises(ConfigError, match="use --convert embed"):
        _llm(llama, runner="pooling", convert="none")


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_that_was_saved_without_its_head(tmp_path, tied, hidden_of_llama):
    known = reference("llama")
    load(known.path, "llama").model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {"tie_word_embeddings": tied, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with _llm(tmp_path, runner="pooling", skip_tokenizer_init=True) as llm:
        found = _vectors(llm, _given(known), use_activation=False)
    for states, vector in zip(hidden_of_llama, found, strict=True):
        assert np.allclose(vector, states[-1], atol=2e-3)
