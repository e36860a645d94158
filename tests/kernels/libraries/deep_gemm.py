"""DeepGEMM, as published in deep-gemm 1.0.0: `gemm_fp8_fp8_bf16_nt`."""

import torch


def gemm_fp8_fp8_bf16_nt(lhs, rhs, out):
    """One scale for 128 inputs of a row of lhs, one for 128 rows and 128 inputs of rhs."""
    (x, x_scales), (w, w_scales) = lhs, rhs
    (rows, inputs), outputs = x.shape, w.shape[0]
    assert outputs % 64 == 0 and inputs % 128 == 0 and x.dtype == w.dtype == torch.float8_e4m3fn
    assert x_scales.shape == (rows, inputs // 128) and w_scales.shape == (-(-outputs // 128), inputs // 128)
    assert x_scales.dtype == w_scales.dtype == torch.float32 and out.dtype == torch.bfloat16
    assert all(tensor.is_contiguous() for tensor in (x, w, out))
    wide = x.double() * x_scales.double().repeat_interleave(128, 1)
    weight = w.double() * w_scales.double().repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)
    out.copy_(wide @ weight.T)
