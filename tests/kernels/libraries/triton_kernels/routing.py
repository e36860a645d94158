from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class GatherIndx:
    """Row i of the sorted rows is src_indx[i]; dst_indx[src_indx] = arange."""

    src_indx: torch.Tensor
    dst_indx: torch.Tensor


@dataclass
class ScatterIndx:
    src_indx: torch.Tensor
    dst_indx: torch.Tensor


@dataclass
class RoutingData:
    gate_scal: torch.Tensor
    expt_hist: torch.Tensor
    n_expts_tot: int
    n_expts_act: int
    expt_data: Any = None


def compute_expt_data(expt_hist, n_expts_tot, n_gates):
    assert expt_hist.dtype == torch.int32 and expt_hist.shape == (n_expts_tot,) and int(expt_hist.sum()) == n_gates
    return "blocks of " + str(expt_hist.tolist())
