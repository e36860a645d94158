"""`matmul_ogs`: X gathered and multiplied by the matrix of each row's expert."""

from dataclasses import dataclass, field
from typing import Any

import torch

from .numerics import InFlexData
from .tensor import FP4

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
CONSTRAINTS = {}


@dataclass(frozen=True)
class FnSpecs:
    name: str
    fn: Any
    fn_arg_names: tuple


@dataclass(frozen=True)
class FusedActivation:
    specs: FnSpecs
    fn_args: tuple
    reduction_n: int = 1


@dataclass(frozen=True)
class FlexCtx:
    lhs_data: InFlexData = field(default_factory=InFlexData)
    rhs_data: InFlexData = field(default_factory=InFlexData)


@dataclass
class PrecisionConfig:
    flex_ctx: FlexCtx = field(default_factory=FlexCtx)
    weight_scale: Any = None


def update_opt_flags_constraints(constraints):
    CONSTRAINTS.update(constraints)


def matmul_ogs(
    x,
    w,
    bias,
    routing_data=None,
    gather_indx=None,
    scatter_indx=None,
    precision_config=None,
    betas=None,
    gammas=None,
    out_alpha=None,
    y=None,
    fused_activation=None,
    epilogue=None,
):
    assert x.dtype in (torch.bfloat16, torch.float16) and w.dtype == FP4 and scatter_indx is None and gammas is None
    scale = precision_config.weight_scale.storage
    assert w.storage.layout == ("values", {"mx_axis": 1})
    assert scale.layout == ("scales", {"mx_axis": 1, "num_warps": 8})
    assert routing_data.expt_data and (bias is None or bias.dtype == torch.float32)
    assert routing_data.gate_scal.shape == (int(routing_data.expt_hist.sum()),)
    rows = x
    if gather_indx is not None:
        source = gather_indx.src_indx
        assert source.dtype == torch.int32 and gather_indx.dst_indx[source.long()].tolist() == list(range(len(source)))
        rows = x[source.long() // routing_data.n_expts_act]
    codes = w.storage.data
    both = torch.stack([codes & 15, codes >> 4], 2).flatten(1, 2).long()
    factors = torch.exp2(scale.data.float() - 127).repeat_interleave(32, 1)
    matrices = torch.tensor(NUMBERS)[both] * factors
    assert matrices.shape[0] == routing_data.n_expts_tot
    found, start = [], 0
    for expert, count in enumerate(routing_data.expt_hist.tolist()):
        product = rows[start : start + count].float() @ matrices[expert]
        found.append(product if bias is None else product + bias[expert])
        start += count
    result = torch.cat(found)
    if fused_activation is not None:
        assert fused_activation.specs.fn_arg_names == ("alpha", "limit") and fused_activation.reduction_n == 2
        result = fused_activation.specs.fn(result, *fused_activation.fn_args)
    return result.to(x.dtype)
