"""What a layer of gated linear attention is made of. Torch-free."""

from core.api.specs import StateSpec


def gated_linear(heads, key, value):
    """S = sigmoid(gate) S + k v, o = q S / sqrt(key), with a matrix S [key, value] for each head."""
    return StateSpec(
        op="gated_linear",
        inputs={"q_proj": heads * key, "k_proj": heads * key, "v_proj": heads * value, "gate_proj": heads},
        output_size=heads * value,
        state_size=heads * key * value,
        sizes={"heads": heads, "key": key, "value": value},
        params={"gate_bias": (heads,)},
    )
