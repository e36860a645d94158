"""Tuning: the quickest tile by a clock made up here, and products made again from what was launched."""

import pytest
import torch

from core.api.errors import UserError

pytest.importorskip("triton")

from core_kernels.triton.compiling import tune
from core_kernels.triton.compiling.launches import Call, Launch, Pointer
from core_kernels.triton.compiling.tune_device import Prepared
from core_kernels.triton.compiling.work import Work, work_of
from core_kernels.triton.products.packed import Form
from core_kernels.triton.products.product import COMPUTE
from core_kernels.triton.products.tile_rows import Key, Tile, read_tiles

UINT4 = Work(
    Key("sm_90", "uint4", 96, 128),
    Form("int", 4),
    "bf16",
    (("values", "uint8"), ("scale", "float16"), ("zeros", "uint8")),
    tuple(
        zip(
            ("value_stride", "high_stride", "scale_stride", "sub_stride", "super_size", "group_size", "zero"),
            (64, 0, 1, 0, 128, 128, 0),
            strict=True,
        )
    ),
    routed=False,
)


class Clock:
    """Wide tiles are quick, but those of 256 outputs do not fit."""

    def __init__(self) -> None:
        self.measured: list[Tile] = []

    def admits(self, work: Work, tile: Tile, level: int) -> bool:
        return tile.bn < 256

    def seconds(self, work: Work, tile: Tile, level: int) -> float:
        self.measured.append(tile)
        return 1e-3 / tile.bn + 1e-6 * tile.stages + (1e-6 if tile.warps == 4 else 0.0)


def test_the_quickest_tile_that_fits_becomes_a_line() -> None:
    clock = Clock()
    said: list[str] = []
    found = list(tune.measured([UINT4, UINT4], clock, "sm_90", "cuda", said.append))
    assert [best.tile for best in found] == [
        Tile(16, 128, 16, 8, 2),
        Tile(32, 128, 16, 8, 2),
        Tile(64, 128, 32, 8, 2),
        Tile(0, 128, 32, 8, 2),
    ]
    assert all(tile.bn < 256 for tile in clock.measured)
    assert len(said) == 4 and "us, " in said[0]
    groups = read_tiles(tune.table(found), "printed")
    assert list(groups) == [UINT4.key]
    assert [tile.bn for tile in groups[UINT4.key]] == [128] * 4


def _launched(**changes: object) -> Call:
    """A launch of `product` as it is written down."""
    constants = {"FORM": UINT4.form, "COMPUTE": COMPUTE[torch.bfloat16], "SEGMENTS": 1, "BN": 64, "BT": 16}
    arguments = {"x": Pointer(torch.bfloat16, True)}
    arguments |= {name: Pointer(getattr(torch, dtype), True) for name, dtype in UINT4.tensors}
    numbers = dict(UINT4.sizes) | {"num_outputs": 96, "num_inputs": 128, "num_rows": 5}
    launch = Launch(
        "core_kernels.triton.products.kernel:product", tuple(arguments.items()), tuple((constants | changes).items())
    )
    return Call(launch, tuple(numbers.items()))


def test_launches_of_other_tiles_are_one_product() -> None:
    of_integers = Call(Launch("core_kernels.triton.products.int8:product", (), ()), ())
    assert tune.works_of([_launched(), _launched(BT=64), of_integers], "sm_90") == [UINT4]
    assert work_of(_launched(COMPUTE=COMPUTE[torch.float32]), "sm_90").key.weight == "float32"
    with pytest.raises(UserError, match="no product"):
        tune.works_of([], "sm_90")


@pytest.mark.parametrize("routed", [False, True])
def test_a_product_can_be_made_again(routed: bool) -> None:
    work = UINT4._replace(key=UINT4.key._replace(chip="interpreter"), routed=routed)
    prepared = Prepared(work, 16, torch.device("cpu"))
    prepared.out.fill_(torch.nan)
    prepared.call(Tile(16, 32, 16, 4, 2))
    assert bool(prepared.out.isfinite().all())
