"""All rows of model families that come with the engine, by lineage.

Owns: their order, which `core models` prints. Called by: the table of families, through the entry point `own` of the group
`core.model_rows`.
"""

from core_models import (
    alibi,
    bert,
    by_kind,
    cohere,
    cohere_moe,
    dbrx,
    deepseek,
    exaone,
    falcon,
    gemma,
    glm,
    gpt2,
    gpt_oss,
    hybrid,
    latent,
    llama,
    llama4,
    mamba,
    moe,
    olmo,
    opt,
    phi,
    plain_mlp,
    remote,
    scaled,
    sigmoid_moe,
    whisper,
)
from core_runtime.models.families.row import Family

FAMILIES: tuple[Family, ...] = (
    *llama.ROWS,
    *scaled.ROWS,
    *plain_mlp.ROWS,
    *exaone.ROWS,
    *latent.ROWS,
    *remote.ROWS,
    *gemma.ROWS,
    *moe.ROWS,
    *deepseek.ROWS,
    *cohere.ROWS,
    *glm.ROWS,
    *olmo.ROWS,
    *phi.ROWS,
    *falcon.ROWS,
    *gpt_oss.ROWS,
    *llama4.ROWS,
    *sigmoid_moe.ROWS,
    *by_kind.ROWS,
    *dbrx.ROWS,
    *cohere_moe.ROWS,
    *mamba.ROWS,
    *hybrid.ROWS,
    *gpt2.ROWS,
    *opt.ROWS,
    *alibi.ROWS,
    *bert.ROWS,
    *whisper.ROWS,
)
"""All rows in the order in which `core models` prints them."""
