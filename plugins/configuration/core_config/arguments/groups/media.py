"""Arguments about media in prompts. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

from core.args.arg import Arg, ArgumentGroup


class MediaArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Media: pictures, sounds and videos."""

    place: ClassVar[int] = 74

    limit_mm_per_prompt: Annotated[
        dict[str, Any],
        Arg(
            'Most items of each modality in a prompt: {"image": 4}, or image=4. 0: the modality is refused, and its tower is '
            "not loaded. Unset: 16 pictures, 16 sounds, 4 videos.",
            since="0.2.0",
        ),
    ] = {}
    language_model_only: Annotated[
        bool, Arg("Serve the text of a model that takes media: no tower is loaded.", since="0.2.0")
    ] = False
    max_image_pixels: Annotated[
        int,
        Arg(
            "Most pixels of a picture, or of a video's frame, as its header states them before it is decoded.",
            ge=1,
            human=True,
            since="0.2.0",
        ),
    ] = 64_000_000
    max_audio_seconds: Annotated[
        float, Arg("Longest sound that a prompt or a transcription takes, in seconds.", gt=0, le=86_400, since="0.2.0")
    ] = 3_600.0
    enable_word_times: Annotated[
        bool,
        Arg(
            "Find the times of words in transcriptions: Whisper's decoder is loaded once more, and reads each text again.",
            since="0.2.0",
        ),
    ] = False
    max_video_frames: Annotated[int, Arg("Most frames of a video that the model sees.", ge=1, since="0.2.0")] = 768
    media_io_kwargs: Annotated[
        dict[str, Any],
        Arg(
            'How files are read: {"video": {"num_frames": 32}} or {"video": {"fps": 1}} chooses frames of videos. Unset: 2 a '
            "second.",
            since="0.2.0",
        ),
    ] = {}
    video_pruning_rate: Annotated[
        float | None,
        Arg(
            "Share of a video's rows that are left out: those most like the rows in the same place of the frame before. The "
            "first frame is kept whole. Unset: none is.",
            ge=0,
            since="0.2.0",
        ),
    ] = None
    video_pruning_method: Annotated[
        str, Arg("How rows are chosen: evs (arXiv 2510.14624), by cosine similarity.", choices=("evs",), since="0.2.0")
    ] = "evs"
    enable_mm_embeds: Annotated[
        bool,
        Arg(
            "Take rows of pictures and sounds in requests, as their tower would compute them: parts of type image_embeds and "
            "audio_embeds, tensors in multi_modal_data.",
            since="0.2.0",
        ),
    ] = False
    mm_encoder_cache_gb: Annotated[
        float,
        Arg("GiB of rows that towers have computed, kept for later prompts with the same media.", ge=0, since="0.2.0"),
    ] = 1.0
    mm_processor_cache_gb: Annotated[float, Arg("GiB of processed media that are kept.", ge=0, since="0.2.0")] = 1.0
    mm_processor_cache_type: Annotated[
        str,
        Arg(
            "Where processed media are kept: lru, each API process its own, or shm, in memory that all of them share "
            "(--api-server-count).",
            choices=("lru", "shm"),
            since="0.2.0",
        ),
    ] = "lru"
    mm_shm_cache_max_object_size_mb: Annotated[
        int, Arg("MiB of the largest processed item that shared memory keeps.", ge=1, le=65_536, since="0.2.0")
    ] = 128
    mm_processor: Annotated[
        str | None,
        Arg(
            "Plugin that makes features of pictures, sounds and videos. Unset: transformers, or gguf for a model with a "
            "projector file.",
            plugin="processor",
            since="0.2.0",
        ),
    ] = None
    mm_processor_config: Annotated[
        dict[str, Any], Arg("Own arguments of that plugin: --mm-processor-config.KEY VALUE.", since="0.2.0")
    ] = {}
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None, Arg("Arguments of the checkpoint's image processor that replace its own.", since="0.2.0")
    ] = None
    mmproj: Annotated[
        str,
        Arg(
            "Projector of a GGUF model's pictures: a file, auto (the only mmproj*.gguf in the model's directory, if it fits) "
            "or none (the model takes text).",
            since="0.2.0",
        ),
    ] = "auto"
    renderer_num_workers: Annotated[int, Arg("Processes that process media.", ge=1, le=64, since="0.2.0")] = 1
    allowed_media_domains: Annotated[
        list[str] | None,
        Arg(
            "Hosts from which media of requests may be fetched. Unset: none is; data URLs are always taken.",
            commas=True,
            since="0.2.0",
        ),
    ] = None
    allowed_local_media_path: Annotated[
        str, Arg("Directory below which requests may name files, as file:// URLs. Unset: none is read.", since="0.2.0")
    ] = ""
    skip_mm_profiling: Annotated[bool, Arg("No effect: nothing is profiled at the start.", since="0.2.0")] = False
    disable_chunked_mm_input: Annotated[
        bool, Arg("No effect: a picture has the same rows, wherever a chunk of its prompt ends.", since="0.2.0")
    ] = False
