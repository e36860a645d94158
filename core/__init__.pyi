from core.api.sampling_params import SamplingParams as SamplingParams
from core.api.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
from core.version import __version__ as __version__
from core_frontend.api.outputs import CompletionOutput as CompletionOutput
from core_frontend.api.outputs import RequestOutput as RequestOutput
from core_frontend.api.pooling_outputs import ClassificationOutput as ClassificationOutput
from core_frontend.api.pooling_outputs import ClassificationRequestOutput as ClassificationRequestOutput
from core_frontend.api.pooling_outputs import EmbeddingOutput as EmbeddingOutput
from core_frontend.api.pooling_outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from core_frontend.api.pooling_outputs import PoolingOutput as PoolingOutput
from core_frontend.api.pooling_outputs import PoolingRequestOutput as PoolingRequestOutput
from core_frontend.api.pooling_outputs import ScoringOutput as ScoringOutput
from core_frontend.api.pooling_outputs import ScoringRequestOutput as ScoringRequestOutput
from core_frontend.api.pooling_params import PoolingParams as PoolingParams
from core_frontend.library.async_llm import AsyncLLM as AsyncLLM
from core_frontend.library.async_llm import AsyncLLMEngine as AsyncLLMEngine
from core_frontend.library.beam_search import BeamSearchParams as BeamSearchParams
from core_frontend.library.engine_args import AsyncEngineArgs as AsyncEngineArgs
from core_frontend.library.engine_args import EngineArgs as EngineArgs
from core_frontend.library.inputs import PromptType as PromptType
from core_frontend.library.inputs import TextPrompt as TextPrompt
from core_frontend.library.inputs import TokensPrompt as TokensPrompt
from core_frontend.library.llm_engine import LLMEngine as LLMEngine
from core_frontend.library.shared_tensors import SharedTensors as SharedTensors
from core_frontend.llm import LLM as LLM

__all__: list[str]
