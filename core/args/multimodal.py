"""Arguments about images, audio and video. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

MEDIA = "requests carry text"


class MultimodalArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Media in prompts."""

    limit_mm_per_prompt: Annotated[
        dict[str, Any],
        Arg(
            "Most items of each kind of media in one prompt: --limit-mm-per-prompt.image 2.", pairs=True, unserved=MEDIA
        ),
    ] = {}
    language_model_only: Annotated[
        bool, Arg("Refuse all media, as a limit of 0 for each kind does.", unserved="media are refused in any case")
    ] = False
    enable_mm_embeds: Annotated[bool, Arg("Accept media that are already encoded.", unserved=MEDIA)] = False
    interleave_mm_strings: Annotated[
        bool, Arg("Placeholders of media stay where they are in the text.", unserved=MEDIA)
    ] = False
    media_io_kwargs: Annotated[dict[str, Any], Arg("How each kind of media is read.", unserved=MEDIA)] = {}
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None, Arg("Settings of the model's media processor.", unserved=MEDIA)
    ] = None
    mm_processor_cache_gb: Annotated[
        float, Arg("GiB of processed media kept by each process; 0: none.", ge=0, unserved=MEDIA)
    ] = 4.0
    mm_processor_cache_type: Annotated[
        str, Arg("Where they are kept: in each process, or shared.", choices=("lru", "shm"), unserved=MEDIA)
    ] = "lru"
    mm_shm_cache_max_object_size_mb: Annotated[
        int, Arg("MiB of the largest item in the shared cache.", ge=1, unserved=MEDIA)
    ] = 128
    mm_tensor_ipc: Annotated[
        str,
        Arg("How media travel between processes.", choices=("direct_rpc", "torch_shm"), unserved=MEDIA),
    ] = "direct_rpc"
    mm_encoder_only: Annotated[bool, Arg("Load only the media encoder.", unserved=MEDIA)] = False
    mm_encoder_tp_mode: Annotated[
        str,
        Arg("Ranks split the encoder's weights, or its batch.", choices=("weights", "data"), unserved=MEDIA),
    ] = "weights"
    mm_encoder_attn_backend: Annotated[str | None, Arg("Attention backend of the media encoder.", unserved=MEDIA)] = (
        None
    )
    skip_mm_profiling: Annotated[bool, Arg("Do not measure the encoder's memory at start.", unserved=MEDIA)] = False
    video_pruning_rate: Annotated[
        float | None, Arg("Share of video tokens that are dropped.", ge=0, lt=1, unserved=MEDIA)
    ] = None
