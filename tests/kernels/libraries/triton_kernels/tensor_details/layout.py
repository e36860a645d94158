def make_default_matmul_mxfp4_w_layout(mx_axis):
    return "values", {"mx_axis": mx_axis}


def make_default_matmul_mxfp4_w_scale_layout(mx_axis, num_warps=8):
    return "scales", {"mx_axis": mx_axis, "num_warps": num_warps}
