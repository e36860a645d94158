"""Packages that no built-in plugin resembles, each written against the documentation and installed by pip: they pass the
kit's checks, and models run on them. The oracle of every text is the same model in plain numbers on the built-in plugins."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core_kit.checkpoints import TINY, write_checkpoint

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PROMPTS = [[1, *range(40, 75)], [1, 70, 71, 72], [1, *[90, 91] * 6]]
MAX_LINES = 200

JOBS = """
import json, sys
from core import LLM, SamplingParams

pairs = []
def watch():
    from core_draft_heads.proposer import DraftHeads
    inner = DraftHeads.propose
    def propose(self, batch):
        drafts = inner(self, batch)
        pairs.extend([delta[-1], draft[0]] for delta, draft in zip(batch.token_deltas, drafts) if draft)
        return drafts
    DraftHeads.propose = propose

def run(job):
    if "draft_heads" in str(job):
        watch()
    settings = {"max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "dtype": "float32", **job["settings"]}
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(use_tqdm_on_load=False, **settings) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
        return {"tokens": [o.outputs[0].token_ids for o in outputs], "drafts": llm.stats().spec_num_draft_tokens}

print(json.dumps({"answers": {name: run(job) for name, job in json.loads(sys.argv[1]).items()}, "pairs": pairs}))
"""

CHECKS = """
import json, sys
from core_kit.checks import general
from core_kit import cases
from tests.kit.forked_workers import ForkedWorkers

parents = {load: ForkedWorkers(load=load) for load in (True, False)}
general.ask = lambda task: parents[task.load].ask(task)
found = []
for task in json.loads(sys.argv[1]):
    for case in cases(task.pop("kind"), task.pop("name"), **task):
        finding = case.finding()
        found.append([finding.plugin, finding.check, finding.verdict, finding.sentence])
for parent in parents.values():
    parent.close()
print(json.dumps(found))
"""


def is_linear(name):
    return "_proj.weight" in name


class Checkpoints:
    """One random llama in every form that the packages read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = write_checkpoint(folder / "plain")
        self.tensors = load_file(str(self.plain / "model.safetensors"))

    def write(self, name, tensors, config=None):
        """A copy with other tensors, and other values in its configuration."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(TINY if config is None else config))
        (folder / "tokenizer.json").write_bytes((self.plain / "tokenizer.json").read_bytes())
        save_file({key: value.contiguous() for key, value in tensors.items()}, str(folder / "model.safetensors"))
        return folder

    def nibble4(self):
        """(packed, its values in plain numbers)."""
        from core_nibble4.method import save

        packed, rounded = {}, {}
        for name, tensor in self.tensors.items():
            if not is_linear(name):
                packed[name] = rounded[name] = tensor
                continue
            part = name.removesuffix(".weight")
            packed[f"{part}.qweight"], packed[f"{part}.scales"] = save(tensor, 32)
            scale = packed[f"{part}.scales"].float().repeat_interleave(32, 1)
            rounded[name] = torch.round(tensor / scale).clamp(-8, 7) * scale
        config = {**TINY, "quantization_config": {"quant_method": "nibble4"}}
        return self.write("nibble4", packed, config), self.write("nibble4_plain", rounded)

    def fp8(self):
        """What eight bits leave of the values."""
        rounded = dict(self.tensors)
        for name, tensor in self.tensors.items():
            if is_linear(name):
                scale = tensor.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
                rounded[name] = (tensor / scale).to(torch.float8_e4m3fn).float() * scale
        return self.write("fp8_plain", rounded)

    def store(self):
        """An object store with the model in two shards."""
        model = self.folder / "store" / "bucket" / "tiny"
        model.mkdir(parents=True, exist_ok=True)
        names = sorted(self.tensors)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for shard, mine in shards.items():
            save_file({name: self.tensors[name] for name in mine}, str(model / shard))
        weight_map = {name: shard for shard, mine in shards.items() for name in mine}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        for name in ("config.json", "tokenizer.json"):
            (model / name).write_bytes((self.plain / name).read_bytes())
        log, cache = self.folder / "requests.log", self.folder / "cache"
        return {"root": str(self.folder / "store"), "cache": str(cache), "log": str(log)}

    def birch(self):
        """The same model under other names."""
        from core_birch.family import OUTSIDE, PARTS, SIZES

        own = {canonical: f"{name}." for name, canonical in OUTSIDE.items()}
        tensors = {}
        for name, tensor in self.tensors.items():
            part, _, kind = name.rpartition(".")
            if part in own:
                tensors[own[part] + kind] = tensor
                continue
            _, _, layer, inner = part.split(".", 3)
            mine = next(mine for mine, canonical in PARTS.items() if canonical == inner)
            tensors[f"h.{layer}.{mine}.{kind}"] = tensor
        back = {usual: mine for mine, usual in SIZES.items()}
        config = {back.get(key, key): value for key, value in TINY.items()}
        return self.write("birch", tensors, {**config, "model_type": "birch", "architectures": ["BirchLMHeadModel"]})

    def maple(self):
        """(The same model, fused and under other names, with scalars; as a granite, which the engine's table has.)"""
        own, left = {}, dict(self.tensors)
        for layer in range(TINY["num_hidden_layers"]):
            block, twig = f"model.layers.{layer}.", f"trunk.twigs.{layer}."
            q, k, v = (left.pop(f"{block}self_attn.{part}_proj.weight") for part in "qkv")
            groups = zip(*(matrix.chunk(TINY["num_key_value_heads"]) for matrix in (q, k, v)), strict=True)
            own[f"{twig}attn.query_key_value.weight"] = torch.cat([torch.cat(group) for group in groups])
            both = [left.pop(f"{block}mlp.{part}_proj.weight") for part in ("gate", "up")]
            own[f"{twig}ff.both.weight"] = torch.cat(both)
            own[f"{twig}attn.out.weight"] = left.pop(f"{block}self_attn.o_proj.weight")
            own[f"{twig}ff.down.weight"] = left.pop(f"{block}mlp.down_proj.weight")
            own[f"{twig}norm_a.weight"] = left.pop(f"{block}input_layernorm.weight")
            own[f"{twig}norm_b.weight"] = left.pop(f"{block}post_attention_layernorm.weight")
        own["trunk.words.weight"] = left.pop("model.embed_tokens.weight")
        own["trunk.top_norm.weight"] = left.pop("model.norm.weight")
        own["trunk.step_counter"] = torch.zeros(1)
        sizes = {"hidden_size": "width", "num_hidden_layers": "depth", "intermediate_size": "ff_width"}
        config = {sizes.get(key, key): value for key, value in TINY.items()}
        gains = {"embed_gain": 3.0, "branch_gain": 0.4, "logit_divisor": 2.0}
        config |= {**gains, "model_type": "maple", "architectures": ["MapleLMHeadModel"]}
        granite = {**TINY, "model_type": "granite", "architectures": ["GraniteForCausalLM"]}
        granite |= {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0}
        granite["attention_multiplier"] = (TINY["hidden_size"] // TINY["num_attention_heads"]) ** -0.5
        return self.write("maple", own | left, config), self.write("granite", self.tensors, granite)

    def heads(self):
        """Draft heads that leave the hidden state as it is: each drafts the newest token."""
        path = self.folder / "heads.safetensors"
        save_file({f"head.{i}": torch.eye(TINY["hidden_size"]) for i in range(2)}, str(path))
        return path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, site):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))  # the packages' own code packs some of them
        yield Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def answers(checkpoints, python, tmp_path_factory):
    """Tokens of every package, and of the oracles, from one process."""
    packed, packed_plain = checkpoints.nibble4()
    maple, granite = checkpoints.maple()
    plain, programs = str(checkpoints.plain), tmp_path_factory.mktemp("log") / "programs.json"
    settings = {
        "plain": {"model": plain},
        "nibble4": {"model": str(packed), "kernels": ["nibble4", "auto"]},
        "nibble4 oracle": {"model": str(packed_plain)},
        "rows_fp8": {"model": plain, "quantization": "rows_fp8"},
        "rows_fp8 oracle": {"model": str(checkpoints.fp8())},
        "toystore": {"model": "toystore://bucket/tiny", "model_loader_extra_config": checkpoints.store()},
        "static_shapes": {
            "model": plain,
            "device": "static_shapes",
            "platform_config": {"buckets": [1, 4, 32], "log": str(programs)},
        },
        "birch": {"model": str(checkpoints.birch())},
        "maple": {"model": str(maple)},
        "maple oracle": {"model": str(granite)},
        "draft_heads": {
            "model": plain,
            "speculative_config": {
                "method": "draft_heads",
                "adaptive": False,
                "num_speculative_tokens": 2,
                "weights": str(checkpoints.heads()),
            },
        },
    }
    jobs = {name: {"settings": values, "prompts": PROMPTS} for name, values in settings.items()}
    done = python("-c", JOBS, json.dumps(jobs))
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return {**told["answers"], "pairs": told["pairs"], "programs": json.loads(programs.read_text())}


@pytest.mark.parametrize(
    "name, oracle",
    [
        ("nibble4", "nibble4 oracle"),
        ("rows_fp8", "rows_fp8 oracle"),
        ("toystore", "plain"),
        ("static_shapes", "plain"),
        ("birch", "plain"),
        ("maple", "maple oracle"),
        ("draft_heads", "plain"),
    ],
)
def test_the_text_is_that_of_plain_numbers(answers, name, oracle):
    assert answers[name]["tokens"] == answers[oracle]["tokens"]
    assert all(len(tokens) == 20 for tokens in answers[name]["tokens"])


def test_quantized_text_is_not_that_of_the_original(answers):
    assert answers["nibble4"]["tokens"] != answers["plain"]["tokens"]


def test_hidden_states_belong_to_the_newest_token(answers):
    """A head that changes nothing drafts what was just sampled, whatever was accepted before."""
    assert answers["draft_heads"]["drafts"] > 20
    assert len(answers["pairs"]) > 20
    assert all(newest == draft for newest, draft in answers["pairs"])


def test_the_memory_plan_counts_the_heads(core, checkpoints):
    """Before anything is loaded; a file that is missing is a sentence."""
    words = ["config", "explain", str(checkpoints.plain), "--json", "--speculative-config.method", "draft_heads"]
    words += ["--speculative-config.num-speculative-tokens", "2", "--speculative-config.weights"]
    done = core(*words, str(checkpoints.heads()))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["memory"]["proposer_bytes"] == 2 * 4 * TINY["hidden_size"] ** 2
    missing = core(*words, "/no/such/heads")
    assert missing.returncode == 2 and "--speculative-config.weights /no/such/heads: cannot be read" in missing.stderr


def test_only_the_buckets_are_compiled(answers):
    sizes = {program[2] for program in answers["programs"]}
    assert sizes == {4, 32}, "three sequences never need the program of one row"
    assert len(answers["programs"]) == len({tuple(program) for program in answers["programs"]})


def test_the_store_is_read_by_ranges(answers, checkpoints):
    shards = {}
    for line in (checkpoints.folder / "requests.log").read_text().splitlines():
        key, start, stop = line.split()
        if key.endswith(".safetensors"):
            shards.setdefault(key, []).append((int(start), int(stop)))
    assert len(shards) == 2
    for key, ranges in shards.items():
        size = (checkpoints.folder / "store" / key).stat().st_size
        bodies = [part for part in ranges if part[1] - part[0] > size // 2]
        assert len(bodies) == 1, "neighbouring tensors are read with one request"


@pytest.mark.slow
def test_packages_pass_the_kit(checkpoints, python):
    packed, packed_plain = checkpoints.nibble4()
    tasks = [
        {"kind": "quantization", "name": "nibble4", "model": str(packed), "reference": str(packed_plain)},
        {"kind": "kernels", "name": "nibble4"},
        {"kind": "quantization", "name": "rows_fp8"},
        {
            "kind": "loader",
            "name": "toystore",
            "model": "toystore://bucket/tiny",
            "arguments": {**checkpoints.store(), "log": ""},
        },
        {"kind": "speculative", "name": "draft_heads", "arguments": {"weights": str(checkpoints.heads())}},
        {"kind": "platform", "name": "static_shapes"},
        {"kind": "model", "name": "birch", "model": str(checkpoints.birch())},
        {"kind": "model", "name": "maple", "model": str(checkpoints.maple()[0])},
    ]
    done = python("-c", CHECKS, json.dumps(tasks))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [finding for finding in found if finding[2] in ("failed", "warned")] == []
    passed = {plugin: sum(f[0] == plugin and f[2] == "passed" for f in found) for plugin in {f[0] for f in found}}
    assert len(passed) == 8 and min(passed.values()) >= 12, passed


@pytest.mark.parametrize("name", ["nibble4", "rows_fp8", "toystore", "draft_heads", "static_shapes", "birch"])
def test_each_package_is_short(name):
    lines = sum(len(path.read_text().splitlines()) for path in (HERE / name).rglob("*.py"))
    assert 20 < lines <= MAX_LINES


def test_a_family_outside_the_table_takes_fewer_than_40_lines():
    lines: list[str] = []
    for path in (HERE / "maple").rglob("*.py"):
        lines += path.read_text().splitlines()
    assert sum(1 for line in lines if line.strip()) < 40


def test_what_a_row_does_not_read_is_refused(checkpoints, core):
    """As for the engine's own rows, before a weight is read: keys, sizes and tensors."""
    model, _ = checkpoints.maple()
    explained = core("models", "explain", str(model), "--json")
    told = json.loads(explained.stdout)
    assert "model plugin 'maple' (core-maple 0.1.0)" in told["reader"] and told["refused"] == []
    assert [(group["name"], group["examples"]) for group in told["ignored"]] == [
        ("of training", ["trunk.step_counter"])
    ]
    assert {"width", "embed_gain", "logit_divisor"} <= set(told["keys_read"])
    refused = core("config", "explain", str(model), "--hf-overrides", '{"clip_qkv": 3.0}')
    assert (
        refused.returncode == 2 and "clip_qkv = 3.0, which models of the family 'maple' do not read" in refused.stderr
    )
    refused = core("config", "explain", str(model), "--hf-overrides", '{"depth": 1}')
    assert refused.returncode == 2 and "says 1 layers, the tensors are of 2" in refused.stderr
    taken = core(
        "config", "explain", str(model), "--hf-overrides", '{"depth": 1, "ignored_tensors": ["model.layers.1.*"]}'
    )
    assert taken.returncode == 0, taken.stderr
