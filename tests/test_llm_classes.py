"""Classes and scores of whole engines, held against transformers' own models of the same random weights."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from core import LLM, PoolingParams
from core.api.errors import ConfigError, RequestError
from core_config.pooled.rerankers import QWEN3
from core_kit.checkpoints import write_tokenizer
from tests.families.architectures import tiny_config
from tests.families.converted import write
from tests.families.oracle import randomize, reference
from tests.families.test_remote import as_internlm2

PROMPTS = [list(range(5, 40)), [7, 9, 200, 31]]
NO_BAR = {"use_tqdm": False}
SLOW = pytest.mark.slow
SEQUENCES = [
    "bert",
    "modernbert",
    "qwen3",
    pytest.param("roberta", marks=SLOW),
    pytest.param("xlm-roberta", marks=SLOW),
    pytest.param("distilbert", marks=SLOW),
    pytest.param("llama", marks=SLOW),
    pytest.param("qwen2", marks=SLOW),
    pytest.param("gpt2", marks=SLOW),
    pytest.param("gemma2", marks=SLOW),
    pytest.param("gte", marks=SLOW),
    pytest.param("jina_embeddings_v3", marks=SLOW),
]
TOKENS = [
    "bert",
    pytest.param("qwen2", marks=SLOW),
    pytest.param("roberta", marks=SLOW),
    pytest.param("modernbert", marks=SLOW),
    pytest.param("gte", marks=SLOW),
]


def _llm(path, **settings):
    return LLM(str(path), dtype="float32", block_size=4, use_tqdm_on_load=False, **settings)


def _made(directory, model_type, kind=AutoModelForSequenceClassification, **changes):
    """A checkpoint of random weights, and the model as transformers reads it."""
    torch.manual_seed(7)
    config = tiny_config(model_type)
    config.num_labels = changes.pop("num_labels", 3)
    for name, value in changes.items():
        setattr(config, name, value)
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def _logits(model, ids, **more):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), **more).logits[0].float()


def _given(prompts=PROMPTS):
    return [{"prompt_token_ids": ids} for ids in prompts]


@pytest.mark.parametrize("model_type", SEQUENCES)
def test_classes_of_texts_equal_transformers(tmp_path, model_type):
    model = _made(tmp_path, model_type)
    with _llm(tmp_path) as llm:
        found = llm.classify(_given(), **NO_BAR)
        raw = llm.encode(_given(), PoolingParams(use_activation=False), **NO_BAR)
        first = llm.encode(_given()[:1], pooling_task="token_classify", **NO_BAR)[0].outputs.data
        with pytest.raises(RequestError, match="--convert embed makes vectors"):
            llm.embed(_given(), **NO_BAR)
        with pytest.raises(RequestError, match="tells 3 classes, which are no score"):
            llm.score("a", "b", **NO_BAR)
    for ids, output, numbers in zip(PROMPTS, found, raw, strict=True):
        logits = _logits(model, ids)
        assert np.allclose(numbers.outputs.data, logits, atol=2e-3)
        assert np.allclose(output.outputs.probs, logits.softmax(-1), atol=1e-3)
        assert output.outputs.num_classes == 3
    assert first.shape == (len(PROMPTS[0]), 3)
    assert np.allclose(first.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("model_type", TOKENS)
def test_classes_of_tokens_equal_transformers(tmp_path, model_type):
    model = _made(tmp_path, model_type, AutoModelForTokenClassification)
    with _llm(tmp_path) as llm:
        found = llm.reward(_given(), **NO_BAR)
        with pytest.raises(
            RequestError, match="'classify', which this model does not serve: it serves 'token_classify'"
        ):
            llm.classify(_given(), **NO_BAR)
    for ids, output in zip(PROMPTS, found, strict=True):
        assert np.allclose(output.outputs.data, _logits(model, ids).softmax(-1), atol=1e-3)


def _with_head(path, head, prefix, **changes):
    """Put a head of torch's layers in place of a checkpoint's own, and its architecture."""
    tensors = {name: tensor for name, tensor in load_file(path / "model.safetensors").items() if "score" not in name}
    tensors |= {f"{prefix}{name}": tensor.detach() for name, tensor in head.state_dict().items()}
    config = json.loads((path / "config.json").read_text())
    for key in ("id2label", "label2id", "num_labels"):
        config.pop(key, None)
    config |= changes
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))


def _two_layers(size, labels):
    return torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, labels))


@pytest.mark.parametrize(("architecture", "labels"), [("Qwen2ForRewardModel", 1), ("Qwen2ForProcessRewardModel", 2)])
def test_rewards_are_those_of_the_published_head(architecture, labels, tmp_path):
    """transformers has no class for it: its model and torch's layers, as the code of Qwen2.5-Math-RM puts them together."""
    model = _made(tmp_path, "qwen2", AutoModelForTokenClassification)
    head = _two_layers(model.config.hidden_size, labels)
    _with_head(tmp_path, head, "score.", architectures=[architecture])
    with _llm(tmp_path) as llm:
        found = llm.reward(_given(), **NO_BAR)
        raw = llm.encode(_given(), PoolingParams(use_activation=False), **NO_BAR)
    for ids, output, numbers in zip(PROMPTS, found, raw, strict=True):
        with torch.inference_mode():
            rewards = head(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0])
        assert np.allclose(numbers.outputs.data, rewards, atol=1e-3)
        shares = rewards.sigmoid() if labels == 1 else rewards.softmax(-1)
        assert np.allclose(output.outputs.data, shares, atol=1e-3)


def test_rewards_of_steps_are_those_behind_their_token(tmp_path):
    model = _made(tmp_path, "qwen2", AutoModelForTokenClassification)
    _with_head(
        tmp_path, _two_layers(model.config.hidden_size, 2), "score.", architectures=["Qwen2ForProcessRewardModel"]
    )
    with _llm(tmp_path) as llm:
        whole = llm.reward(_given(), **NO_BAR)
    keys = {"tok_pooling_type": "STEP", "step_tag_id": 9, "returned_token_ids": [1]}
    with _llm(tmp_path, pooler_config=keys) as llm:
        found = llm.reward(_given(), **NO_BAR)
    for ids, every, steps in zip(PROMPTS, whole, found, strict=True):
        place = ids.index(9)
        assert np.array_equal(steps.outputs.data, every.outputs.data[place : place + 1, 1:])
    with pytest.raises(ConfigError, match="needs step_tag_id"):
        _llm(tmp_path, pooler_config={"tok_pooling_type": "STEP"})
    with pytest.raises(
        ConfigError, match=r"returned_token_ids \[2\]: expected numbers of this model's classes, 0 to 1"
    ):
        _llm(tmp_path, pooler_config={"returned_token_ids": [2]})


def test_a_head_for_rankings_reads_the_last_token(tmp_path):
    """As the code of Jina's reranker m0 puts it together; its text part is a Qwen2."""
    model = _made(tmp_path, "qwen2", AutoModelForTokenClassification)
    head = _two_layers(model.config.hidden_size, 1)
    _with_head(tmp_path, head, "score.", architectures=["Qwen2ForRanking"], problem_type="regression")
    with _llm(tmp_path) as llm:
        found = llm.classify(_given(), **NO_BAR)
    for ids, output in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            score = head(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1])
        assert np.allclose(output.outputs.probs, score, atol=1e-3)


def test_rewards_of_internlm2_come_from_one_row(tmp_path):
    """Its model is a llama of transformers in another layout; its reward is a matrix of one row for each token."""
    model = _made(tmp_path, "llama", AutoModelForTokenClassification)
    head = torch.nn.Linear(model.config.hidden_size, 1, bias=False)
    _with_head(tmp_path, head, "v_head.", architectures=["InternLM2ForRewardModel"])
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    as_internlm2(config, tensors)
    write(tmp_path, config, tensors)
    with _llm(tmp_path) as llm:
        raw = llm.encode(_given(), PoolingParams(use_activation=False), **NO_BAR)
    for ids, numbers in zip(PROMPTS, raw, strict=True):
        with torch.inference_mode():
            rewards = head(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0])
        assert np.allclose(numbers.outputs.data, rewards, atol=1e-3)


@pytest.mark.slow
def test_chunks_change_no_bit_of_classes(tmp_path):
    _made(tmp_path, "llama", AutoModelForTokenClassification)
    with _llm(tmp_path, enable_prefix_caching=False) as llm:
        expected = llm.reward(_given(), **NO_BAR)
    with _llm(tmp_path, enable_prefix_caching=False, max_num_batched_tokens=5, max_num_seqs=4) as llm:
        found = llm.reward(_given(), **NO_BAR)
    for one, other in zip(expected, found, strict=True):
        assert np.array_equal(one.outputs.data, other.outputs.data)


KINDS = {
    "regression": ({"problem_type": "regression"}, lambda logits: logits),
    "several labels": ({"problem_type": "multi_label_classification"}, torch.sigmoid),
    "one label": ({"num_labels": 1}, torch.sigmoid),
    "cross-encoder": (
        {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        lambda logits: logits,
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_problem_says_what_numbers_are(tmp_path, name):
    changes, squash = KINDS[name]
    model = _made(tmp_path, "bert", **changes)
    with _llm(tmp_path) as llm:
        found = llm.classify(_given()[:1], **NO_BAR)[0].outputs.probs
    assert np.allclose(found, squash(_logits(model, PROMPTS[0])), atol=1e-3)


def test_a_model_for_classes_gives_vectors_when_asked(tmp_path):
    model = _made(tmp_path, "bert")
    with _llm(tmp_path, convert="embed", pooler_config={"pooling_type": "MEAN", "normalize": False}) as llm:
        found = llm.encode(_given()[:1], **NO_BAR)[0].outputs.data
    with torch.inference_mode():
        states = model.bert(input_ids=torch.tensor([PROMPTS[0]])).last_hidden_state[0]
    assert np.allclose(found, states.mean(0), atol=1e-3)


def _pairing_tokenizer(path):
    """The byte tokenizer, which puts special tokens around one text and around two."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    specials = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=specials
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))


@pytest.mark.parametrize("model_type", ["bert", pytest.param("xlm-roberta", marks=SLOW)])
def test_a_cross_encoder_reads_both_texts(tmp_path, model_type):
    model = _made(tmp_path, model_type, num_labels=1, pad_token_id=0)  # 1 begins texts here; transformers skips padding
    tokenizer = _pairing_tokenizer(tmp_path)
    documents = ["It is blue.", "No idea, and a long text about it " * 3]
    with _llm(tmp_path) as llm:
        found = llm.score("What colour?", documents, **NO_BAR)
        cut = llm.score("What colour?", documents, truncate_prompt_tokens=30, **NO_BAR)
        with pytest.raises(RequestError, match="takes texts"):
            llm.score([[1, 2]], [[3]], **NO_BAR)
        with pytest.raises(RequestError, match=r"The pair of texts has .* tokens, but the model takes at most"):
            llm.score("What colour?", "x" * 1000, **NO_BAR)
        with pytest.raises(RequestError, match="instruction is of models with a template"):
            llm.score("a", "b", instruction="c", **NO_BAR)
    for outputs, limit in ((found, None), (cut, 30)):
        for document, output in zip(documents, outputs, strict=True):
            known = {} if limit is None else {"truncation": "longest_first", "max_length": limit}
            encoded = tokenizer("What colour?", document, return_token_type_ids=True, **known)
            types = torch.tensor([encoded["token_type_ids"]])
            assert output.prompt_token_ids == encoded["input_ids"]
            expected = torch.sigmoid(_logits(model, encoded["input_ids"], token_type_ids=types))
            assert np.allclose(output.outputs.score, expected, atol=1e-4)
    assert len(set(encoded["token_type_ids"])) == 2


@pytest.mark.parametrize("types", [[0, 1], [0, 1, 0], [0, 2, 2], "abc"])
def test_wrong_segments_are_refused(tmp_path, types):
    with _llm(reference("bert").path) as llm, pytest.raises(RequestError, match="token_type_ids"):
        llm.embed({"prompt_token_ids": [1, 2, 3], "token_type_ids": types}, **NO_BAR)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    """A checkpoint with the name of a known reranker, whose tokenizer has tokens for yes and no, and transformers' model."""
    path = tmp_path_factory.mktemp("rerankers") / "Qwen3-Reranker-tiny"
    torch.manual_seed(7)
    config = tiny_config("qwen3")
    config.vocab_size = 264
    config.max_position_embeddings = 600
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    model.save_pretrained(path)
    write_tokenizer(path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"no": 260, "ye": 261, "yes": 262}
    tokenizer["model"]["merges"] = [["n", "o"], ["y", "e"], ["ye", "s"]]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path, model.eval()


def _rendered(
    query, document, instruction="Given a web search query, retrieve relevant passages that answer the query"
):
    """As the model's card writes it."""
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def _likelier(model, path, text, wanted=262, other=260):
    ids = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text).ids
    last = _logits(model, ids)[-1]
    return ids, float(torch.sigmoid(last[wanted] - last[other]))


def test_a_reranker_is_known_by_its_name(reranker):
    path, model = reranker
    with _llm(path, runner="pooling") as llm:
        plain = llm.score("q", ["one", "another"], **NO_BAR)
        told = llm.score("q", "one", instruction="Look.", **NO_BAR)[0]
        written = llm.score(_rendered("q", "one")[:-60], _rendered("q", "one")[-60:], **NO_BAR)[0]
        cut = llm.score("q", "long " * 100, truncate_prompt_tokens=-1, **NO_BAR)[0]
        with pytest.raises(RequestError, match="leave no room for a document in 20 tokens"):
            llm.score("q", "one", truncate_prompt_tokens=20, **NO_BAR)
    for document, output in zip(["one", "another"], plain, strict=True):
        ids, expected = _likelier(model, path, _rendered("q", document))
        assert output.prompt_token_ids == ids
        assert np.allclose(output.outputs.score, expected, atol=1e-4)
    assert np.allclose(told.outputs.score, _likelier(model, path, _rendered("q", "one", "Look."))[1], atol=1e-4)
    assert written.outputs.score == pytest.approx(plain[0].outputs.score, abs=1e-6)
    ids = cut.prompt_token_ids
    end = _likelier(model, path, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")[0]
    assert len(ids) <= 600 and ids[-len(end) :] == end


def test_scripts_say_which_tokens_are_classes(reranker, tmp_path):
    path, model = reranker
    other = tmp_path / "other"
    shutil.copytree(path, other)
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"]}
    with _llm(other, hf_overrides=overrides | {"method": "from_2_way_softmax"}) as llm:
        joined = llm.score("qu", "ery", **NO_BAR)[0].outputs.score
    with _llm(other, hf_overrides=overrides | {"method": "no_post_processing"}) as llm:
        both = llm.classify("query", **NO_BAR)[0].outputs.probs
    with _llm(other, hf_overrides=overrides | {"is_original_qwen3_reranker": True}) as llm:
        rendered = llm.score("q", "one", **NO_BAR)[0].outputs.score
    ids, expected = _likelier(model, path, "query")
    assert np.allclose(joined, expected, atol=1e-4)
    assert np.allclose(both, _logits(model, ids)[-1][[260, 262]].softmax(-1), atol=1e-4)
    assert np.allclose(rendered, _likelier(model, path, _rendered("q", "one"))[1], atol=1e-4)


def test_files_say_which_tokens_are_the_score(reranker, tmp_path):
    path, model = reranker
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "path": "1_LogitScore",
            "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
        },
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore" / "config.json").write_text('{"true_token_id": 262, "false_token_id": 260}')
    settings = {"activation_fn": "torch.nn.modules.linear.Identity", "prompts": {}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    template = '{{ messages | map(attribute="content") | join("|") }}{# "query" and "document" #}'
    (tmp_path / "chat_template.jinja").write_text(template)
    with _llm(tmp_path) as llm:
        found = llm.score("q", "one", **NO_BAR)[0].outputs.score
    _, expected = _likelier(model, path, "q|one")
    assert np.allclose(1 / (1 + np.exp(-found)), expected, atol=1e-4)


def test_a_decoder_with_a_head_for_classes_gives_no_text(tmp_path):
    _made(tmp_path, "qwen3")
    with pytest.raises(ConfigError, match="a model with a head for classes, which generates no text"):
        _llm(tmp_path, runner="generate")


def test_a_reranker_gives_text_when_nobody_says_otherwise(reranker):
    path, _ = reranker
    with _llm(path) as llm:
        assert len(llm.generate({"prompt_token_ids": [7]}, **NO_BAR)) == 1
    assert "yes" in QWEN3.tokens


REFUSED = {
    "text": ({"runner": "generate"}, "is an encoder .*, which generates no text"),
    "family": ({"hf_overrides": {"architectures": ["BertForRewardModel"]}}, "the heads of .* are served"),
    "problem": ({"hf_overrides": {"problem_type": "guessing"}}, "problem_type is 'guessing'"),
    "method": ({"hf_overrides": {"classifier_from_token": ["a", "b"]}}, "expected a method of from_2_way_softmax"),
    "labels": ({"hf_overrides": {"id2label": {"3": "d"}}}, r"has shape \[3, 48\]; the configuration says \[4, 48\]"),
    "vectors": ({"convert": "classify", "hf_overrides": {"architectures": ["BertModel"]}}, "has no head for classes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_heads_are_refused(tmp_path, name):
    settings, sentence = REFUSED[name]
    _made(tmp_path, "bert")
    with pytest.raises(ConfigError, match=sentence):
        _llm(tmp_path, **settings)
