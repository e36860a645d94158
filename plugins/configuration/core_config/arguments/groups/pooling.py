"""Arguments about pooling: answers made of hidden states. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar, get_args

import msgspec

from core.api.pooling import PoolingTask
from core.args.arg import Arg, ArgumentGroup

UPPER = ("CLS", "LAST", "MEAN", "MAX", "WEIGHTEDMEAN", "MEAN_SQRT_LEN_TOKENS")
POOLING_TYPES = (*UPPER, *(name.lower() for name in UPPER))


class PoolerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --pooler-config."""

    pooling_type: Annotated[
        str | None,
        Arg(
            "What a text's vector is: the hidden state of the first token (CLS) or of the last one (LAST), the mean of all "
            "(MEAN), their largest numbers (MAX), a mean in which later tokens weigh more (WEIGHTEDMEAN), or their sum through "
            "the root of their number (MEAN_SQRT_LEN_TOKENS).",
            choices=POOLING_TYPES,
        ),
    ] = None
    seq_pooling_type: Annotated[str | None, Arg("Another name of pooling_type.", choices=POOLING_TYPES)] = None
    use_activation: Annotated[
        bool | None, Arg("Whether vectors get the length 1, and the numbers of classes become probabilities.")
    ] = None
    normalize: Annotated[bool | None, Arg("Older name of use_activation.")] = None
    task: Annotated[
        str | None,
        Arg(
            "What is meant when a request names no task, of those that the model serves.",
            choices=get_args(PoolingTask),
        ),
    ] = None
    dimensions: Annotated[
        int | None, Arg("Numbers of a vector, the first ones of it, when a request says nothing.", ge=1)
    ] = None
    logit_mean: Annotated[float | None, Arg("Taken off the numbers of classes before they become probabilities.")] = (
        None
    )
    logit_sigma: Annotated[float | None, Arg("What they are divided by then.")] = None
    enable_chunked_processing: Annotated[
        bool | None,
        Arg(
            "Whether a text beyond the context is pooled in pieces that fit it; its vector is their mean, in which each counts "
            "as often as it has tokens."
        ),
    ] = None
    max_embed_len: Annotated[
        int | None, Arg("Tokens of the longest text that is pooled in pieces.", ge=1, le=1 << 22)
    ] = None
    tok_pooling_type: Annotated[
        str | None,
        Arg(
            "Which tokens' classes are given: of all (ALL), or of those behind a step (STEP), which step_tag_id names.",
            choices=("ALL", "STEP", "all", "step"),
        ),
    ] = None
    step_tag_id: Annotated[
        int | None, Arg("Token behind each step, whose classes a process reward model gives.", ge=0)
    ] = None
    returned_token_ids: Annotated[
        list[int] | None, Arg("Numbers of the classes that are given for each token; unset: all.")
    ] = None


class PoolingArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Pooling: vectors and classes instead of text."""

    place: ClassVar[int] = 20

    runner: Annotated[
        str,
        Arg(
            "What the model is run for: text (generate), or vectors and classes (pooling); auto pools with encoders, heads for "
            "classes and checkpoints that have sentence-transformers' files.",
            choices=("auto", "generate", "pooling"),
        ),
    ] = "auto"
    convert: Annotated[
        str,
        Arg(
            "What a model is used for when it pools: embed makes vectors of hidden states, classify takes its head for classes "
            "(or the tokens of classifier_from_token); auto goes by the checkpoint; none refuses models for text.",
            choices=("auto", "none", "embed", "classify"),
        ),
    ] = "auto"
    pooler_config: Annotated[
        dict[str, Any] | None,
        Arg("How hidden states are pooled. Unset: as the checkpoint's files say.", keys=PoolerKeys),
    ] = None
    io_processor_plugin: Annotated[
        str | None,
        Arg(
            "Plugin that makes prompts of the data of a /pooling request, and the answer of their vectors or classes.",
            plugin="io_processor",
            since="0.2.0",
        ),
    ] = None
    io_processor_config: Annotated[
        dict[str, Any], Arg("Own arguments of that plugin: --io-processor-config.KEY VALUE.", since="0.2.0")
    ] = {}
