"""Arguments about pooling: whether hidden states are the answer, and how. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg


class PoolerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `--pooler-config`."""

    pooling_type: Annotated[
        str | None,
        Arg(
            "Whose hidden state is a text's vector: the first token's (CLS), the last one's (LAST), or the mean of all (MEAN).",
            choices=("CLS", "LAST", "MEAN", "cls", "last", "mean"),
        ),
    ] = None
    seq_pooling_type: Annotated[
        str | None, Arg("Another name of pooling_type.", choices=("CLS", "LAST", "MEAN", "cls", "last", "mean"))
    ] = None
    use_activation: Annotated[
        bool | None, Arg("Whether vectors get the length 1, and the numbers of classes become probabilities.")
    ] = None
    normalize: Annotated[bool | None, Arg("Older name of use_activation.")] = None


class PoolingArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Pooling: vectors and classes instead of text."""

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
