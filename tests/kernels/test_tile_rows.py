"""Tables of tiles: which line is taken for a weight, and what is wrong with a line."""

from pathlib import Path

import pytest
import torch

from core.api.errors import UserError

pytest.importorskip("triton")

from core_kernels.triton.compiling.chips import NAMES
from core_kernels.triton.products.packed import Form
from core_kernels.triton.products.tile_rows import Key, Tile, line_of, read_tiles
from core_kernels.triton.products.tiles import Tiles, shipped, tiles_with, weight_word

OWN = """
# chip weight outputs inputs rows bn bt warps stages
sm_90   uint4   4096  4096  16  128 16 8 2   # measured
sm_90   uint4   4096  4096  -   256 64 8 3
sm_90   packed  -     -     -   32  16 4 1
sm_103  dense   -     -     -   64  16 4 5
"""


def test_every_chip_has_lines_for_every_weight() -> None:
    tiles = Tiles(shipped())
    for chip in (*NAMES, "sm_89", "sm_103", "interpreter"):
        for weight in ("float32", "dense", "uint4", "e2m1_e8m0"):
            for use in ("plain", "segments", "experts"):
                assert tiles.of(chip, weight, use, (4096, 4096))[0].bt == 16


def test_the_closest_line_of_the_users_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(OWN)
    tiles = tiles_with(str(path))
    whole = (4096, 4096)
    assert tiles.tile_for("sm_90", "uint4", "plain", whole, 1) == Tile(16, 128, 16, 8, 2)
    assert tiles.tile_for("sm_90", "uint4", "plain", whole, 17) == Tile(0, 256, 64, 8, 3)
    assert tiles.tile_for("sm_90", "uint4", "plain", (4096, 2048), 17) == Tile(0, 32, 16, 4, 1)
    assert tiles.tile_for("sm_90", "int8", "plain", whole, 17) == Tile(0, 32, 16, 4, 1)
    assert tiles.tile_for("sm_103", "dense", "segments", whole, 5) == Tile(0, 64, 16, 4, 5)
    shipped_tile = Tiles(shipped()).tile_for("sm_90", "dense", "plain", whole, 5)
    assert tiles.tile_for("sm_90", "dense", "plain", whole, 5) == shipped_tile


def test_a_tile_has_no_more_rows_than_a_block() -> None:
    tiles = Tiles(shipped())
    for chip in (*NAMES, "interpreter"):
        for most in (16, 32, 64, 128):
            tile = tiles.tile_for(chip, "dense", "experts", (64, 64), most, most)
            assert most % tile.bt == 0


def test_lines_are_read_as_they_are_written() -> None:
    text = "\n".join(line_of(key, tile) for key, tiles in shipped().items() for tile in tiles)
    assert read_tiles(text, "text") == shipped()
    assert line_of(Key("sm_90", "uint4", 4096, 512), Tile(0, 64, 16, 4, 3)).split() == [
        *("sm_90", "uint4", "4096", "512", "-", "64", "16", "4", "3")
    ]


@pytest.mark.parametrize(
    "text, said",
    [
        ("sm_90 dense - - - 64 16 4", "line 1: 8 words, expected 9"),
        ("\nsm_90 dense - - x 64 16 4 2", "line 2: rows is 'x', expected a positive number, or - for any"),
        ("sm_90 dense - - - 48 16 4 2", "bn is 48, expected a power of 2 from 16 to 512"),
        ("sm_90 dense - - - 64 16 4 9", "stages is 9, expected a number from 1 to 8"),
        ("sm_90 dense - - - 64 16 - 2", "warps is -, expected a power of 2"),
        ("sm_90 dense - - 16 64 16 4 2", "the rows of 'sm_90 dense - -' are 16; expected rising numbers and -"),
        ("sm_90 dense - - - 64 32 4 2", "the first line of 'sm_90 dense - -' has bt 32, expected 16"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(text: str, said: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        tiles_with("/no/such/file")
    with pytest.raises(UserError) as caught:
        read_tiles(text, "own.txt")
    assert said in str(caught.value)


def test_names_of_weights() -> None:
    names = [
        weight_word(form, torch.bfloat16)
        for form in (
            Form("dense"),
            Form("int", 4),
            Form("int", 4, 1, sub="int8"),
            Form("e2m1", 4, scale="e8m0"),
            Form("e4m3"),
        )
    ]
    assert names == ["dense", "uint4", "uint5_int8", "e2m1_e8m0", "e4m3"]
    assert weight_word(Form("int", 4), torch.float32) == "float32"
