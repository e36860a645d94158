"""Arguments about reading a checkpoint. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg


class LoadArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Loading of weights."""

    load_format: Annotated[
        str, Arg("Loader of the checkpoint; auto asks which loader knows the files.", plugin="loader")
    ] = "auto"
    model_loader_extra_config: Annotated[dict[str, Any], Arg("The loader's own arguments.")] = {}
    download_dir: Annotated[str | None, Arg("Directory for downloads. Unset: the hub's cache.")] = None
    use_tqdm_on_load: Annotated[bool, Arg("Show progress while weights are loaded.")] = True
    ignore_patterns: Annotated[
        list[str],
        Arg("Files that are not loaded, as glob patterns.", unserved="the loader knows which files it needs"),
    ] = msgspec.field(default_factory=lambda: ["original/**/*"])
    safetensors_load_strategy: Annotated[
        str | None,
        Arg(
            "How safetensors files are read: mapped, whole, read ahead, or as rebuilt torchao tensors. Unset: mapped.",
            choices=("lazy", "eager", "prefetch", "torchao"),
            served=(None, "lazy"),
            unserved="files are always mapped",
        ),
    ] = None
    pt_load_map_location: Annotated[
        str,
        Arg(
            "Device onto which .bin and .pt files are read, or a JSON object of devices.",
            unserved="such files are not read",
        ),
    ] = "cpu"
