"""`core models` and `core models explain`: what can be served, and what is made of a checkpoint, without torch."""

import json
from pathlib import Path

import pytest

from core.commands.main import main
from core_runtime.models.families import families
from tests.families.oracle import reference
from tests.tiny_models import SHAPE
from tests.torch_free import run_torch_free


def explained(capsys, *words):
    code = main(["models", "explain", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_row_is_listed(capsys):
    assert main(["models", "--json"]) == 0
    rows = {row["family"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() >= {family.name for family in families()}
    assert "LlamaForCausalLM" in rows["llama"]["architectures"] and "llama" in rows["llama"]["model_types"]
    assert main(["models"]) == 0
    assert "Qwen3ForCausalLM" in capsys.readouterr().out


def test_a_checkpoint_is_explained_without_torch(tiny_llama):
    words = ["models", "explain", str(tiny_llama)]
    shown = run_torch_free(f"from core.commands.main import main; assert main({words!r}) == 0")
    for words in ("the row 'llama'", "3 with full attention and an MLP", "rms_norm_eps", "Nothing is refused."):
        assert words in shown


def test_counts_and_bytes_are_those_of_the_file(tiny_llama, capsys):
    code, told = explained(capsys, tiny_llama)
    assert (code, told["refused"]) == (0, [])
    groups = {group["name"]: group for group in told["tensors"]}
    assert (groups["attention"]["count"], groups["MLP"]["count"], groups["norms"]["count"]) == (12, 9, 7)
    assert groups["embedding"]["nbytes"] == SHAPE["vocab_size"] * SHAPE["hidden_size"] * 4
    shape = told["shape"]
    assert 0 < (tiny_llama / "model.safetensors").stat().st_size - shape["weights_bytes"] < 8192  # the file's head
    assert shape["parameters"] * 4 == shape["weights_bytes"]
    assert shape["kv_bytes_per_token"] == 3 * 2 * 2 * 16 * 4  # layers, K and V, heads of 16 numbers, float32
    assert told["keys_neutral"]["attention_dropout"] == "inference drops nothing"
    assert "hidden_size" in told["keys_read"] and "attention_dropout" not in told["keys_read"]


def test_what_a_model_can_do_is_told(tiny_llama, capsys):
    _, told = explained(capsys, tiny_llama)
    uses = told["uses"]
    assert list(uses) == ["text", "vectors", "classes", "adapters", "drafts", "media", "quantization"]
    assert uses["classes"] == "none: the checkpoint has no head for classes"
    assert uses["adapters"] == "LoRA on 21 matrices of blocks (--enable-lora)"  # 3 layers of 7
    assert "from the text" in uses["drafts"] and "ngram" in uses["drafts"]
    assert "eagle3" in uses["drafts"].partition("with a checkpoint of their own")[2]
    assert uses["media"] == "none: the model takes text"
    assert uses["quantization"].startswith("as it is loaded: ") and "fp8" in uses["quantization"]

    _, encoder = explained(capsys, reference("bert").path)
    assert encoder["uses"]["text"] == "none: it is an encoder" and encoder["uses"]["drafts"].startswith("none: ")


def test_states_and_windows_are_told(tiny_lfm2, tiny_gemma3, capsys):
    _, hybrid = explained(capsys, tiny_lfm2)
    assert hybrid["shape"]["layers"] == {"short_conv states and an MLP": 3, "full attention and an MLP": 1}
    assert hybrid["shape"]["state_bytes"] == 3 * 64 * 2 * 4
    _, sliding = explained(capsys, tiny_gemma3)
    assert sliding["shape"]["layers"]["a window of 24 tokens and an MLP"] == 2


def test_every_problem_is_told_at_once(tiny_llama, capsys):
    overrides = {"rms_norm_eps": "small", "vocab_size": -1, "residual_multiplier": 0.3, "trained_by": "us"}
    code, told = explained(capsys, tiny_llama, "--hf-overrides", json.dumps(overrides))
    assert code == 2
    for key in ("rms_norm_eps is 'small'", "vocab_size is -1", "residual_multiplier = 0.3"):
        assert any(key in problem for problem in told["refused"]), key
    code, told = explained(
        capsys, tiny_llama, "--hf-overrides", json.dumps({"vocab_size": 300, "num_hidden_layers": 2})
    )
    assert code == 2 and len(told["refused"]) == 2
    assert "'model.embed_tokens.weight'" in told["refused"][0] and "[300, 64]" in told["refused"][0]
    assert "model.layers.2." in told["refused"][1]


def test_ignored_tensors_have_a_reason(tiny_llama, capsys):
    overrides = json.dumps({"num_hidden_layers": 2, "ignored_tensors": ["model.layers.2.*"], "mine": 1})
    code, told = explained(capsys, tiny_llama, "--hf-overrides", overrides)
    assert (code, told["keys_unknown"]) == (0, ["mine"])
    (group,) = told["ignored"]
    assert (group["name"], group["count"]) == ("told to by --hf-overrides", 9)
    assert (
        group["nbytes"]
        == sum(one["nbytes"] for one in told["tensors"] if one["name"] in ("attention", "MLP")) // 2 + 512
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["explan"], "Did you mean 'explain'?"),
        (["--jsno"], "Did you mean '--json'?"),
        (["explain", "/nowhere/at/all"], "no such file or directory"),
    ],
)
def test_mistakes_are_sentences(words, expected, capsys):
    assert main(["models", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_tokenizer_beyond_the_vocabulary_is_told(tiny_llama, tmp_path: Path, capsys):
    tokenizer = json.loads((tiny_llama / "tokenizer.json").read_text())
    added = {**tokenizer["added_tokens"][0], "id": 300, "content": "<late>"}
    tokenizer["added_tokens"].append(added)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    _, told = explained(capsys, tiny_llama, "--tokenizer", tmp_path)
    assert any("go up to id" in warning and "has 260" in warning for warning in told["warnings"])
