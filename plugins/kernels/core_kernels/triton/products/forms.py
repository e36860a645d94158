"""Forms of prepared weights as the compiler sees them: argument types.

Owns: the argument types, and the forms with catalog rows. Never does: launch. Called by: the kernels that read weights.
"""

from __future__ import annotations

from typing import Final

from core_kernels.triton.products.packed import Form

TENSORS: Final = ("values", "high", "scale", "sub_scale", "minimum", "sub_minimum", "zeros", "row_scale", "table")

PACKED_FORMS: Final[tuple[tuple[Form, tuple[str, ...]], ...]] = (
    (Form("int", 4), ()),
    (Form("int", 4), ("zeros",)),
    (Form("int", 4, width=32), ("minimum",)),
    (Form("int", 8, width=32), ()),
    (Form("int8"), ()),
    (Form("e4m3"), ()),
    (Form("e5m2"), ()),
    (Form("table", 4), ()),
    (Form("e2m1", 4, scale="e8m0", width=32), ()),
    (Form("e2m1", 4, scale="e4m3", width=16), ("row_scale",)),
    (Form("int", 2, sub="nibbles", width=16), ("minimum",)),
    (Form("int", 2, 1, sub="int8", width=16), ()),
    (Form("int", 4, sub="int8", width=32), ("minimum", "sub_minimum")),
    (Form("int", 4, 1, sub="int8", width=32), ("minimum", "sub_minimum")),
    (Form("int", 4, 2, sub="int8", width=16), ()),
    (Form("table", 4, sub="int8", width=32), ()),
    (Form("table", 2, 1, sub="int8", width=16), ()),
)
"""Forms with catalog rows, and the tensors they have beyond what the form itself implies."""


def weight_types(form: Form, number: str, *present: str) -> tuple[dict[str, str], dict[str, object]]:
    """Return the types of a weight's tensors, and None for absent ones.

    number: Triton's type name of dense weights. present: tensors beyond those that the form itself implies.
    """
    dense = form.code == "dense"
    kinds = {"values": f"*{number}" if dense else "*u8", "high": "*u8", "table": "*fp32", "row_scale": "*fp32"}
    kinds |= {"zeros": "*u8", "sub_scale": "*i8" if form.sub == "int8" else "*u8", "sub_minimum": "*i8"}
    kinds |= {"scale": "*fp16" if form.scale == "plain" else "*u8", "minimum": "*fp16"}
    needed = {"values", *present}
    if not dense:
        needed.add("scale")
    if form.high_bits:
        needed.add("high")
    if form.sub != "none":
        needed.add("sub_scale")
    if form.code == "table":
        needed.add("table")
    signature: dict[str, str] = {name: kinds[name] for name in TENSORS if name in needed}
    return signature, {name: None for name in TENSORS if name not in needed}
