"""Whatever is given: a configuration, or sentences."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.api.errors import ConfigError
from core.args.schema import schema
from core_config.arguments import foreign
from core_config.resolve import resolve

KEPT = {"model", "config", "plugins", "load_format", "tokenizer"}
SMALL = st.sampled_from([0, 1, 2, 3, 7, 10**6, 10**18, -1, 0.5, 1e300, float("nan"), True, False, None])
NAMES = sorted((set(schema().fields) | {row.name for row in foreign.names()}) - KEPT)
WORDS = st.sampled_from(["", "1", "auto", "none", "fp8", "prefetch", "mp", "ray", "pooling", "sharded_state", "ngram"])
KEYS = st.sampled_from(["method", "model", "num_speculative_tokens", "image", "backend", "max_new_tokens", "a"])
VALUES = st.recursive(
    SMALL | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(arguments=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=12))
def test_nonsense_is_answered_in_sentences(registry, tiny_llama, arguments):
    named = {**arguments, "model": str(tiny_llama), "load_format": "dummy"}
    try:
        done = resolve(named, context="serve", registry=registry, environ={})
    except ConfigError as error:
        assert error.problems and len(set(error.problems)) == len(error.problems)
        assert all(len(problem) > 15 and "Traceback" not in problem for problem in error.problems)
    else:
        assert done.engine.model.max_model_len > 0
