from core.api.outputs import CompletionOutput as CompletionOutput
from core.api.outputs import RequestOutput as RequestOutput
from core.api.pooling_outputs import ClassificationOutput as ClassificationOutput
from core.api.pooling_outputs import ClassificationRequestOutput as ClassificationRequestOutput
from core.api.pooling_outputs import EmbeddingOutput as EmbeddingOutput
from core.api.pooling_outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from core.api.pooling_outputs import PoolingOutput as PoolingOutput
from core.api.pooling_outputs import PoolingRequestOutput as PoolingRequestOutput
from core.api.pooling_outputs import ScoringOutput as ScoringOutput
from core.api.pooling_outputs import ScoringRequestOutput as ScoringRequestOutput
from core.api.pooling_params import PoolingParams as PoolingParams
from core.api.sampling_params import SamplingParams as SamplingParams
from core.api.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
from core.library.async_llm import AsyncLLM as AsyncLLM
from core.library.async_llm import AsyncLLMEngine as AsyncLLMEngine
from core.library.beam_search import BeamSearchParams as BeamSearchParams
from core.library.engine_args import AsyncEngineArgs as AsyncEngineArgs
from core.library.engine_args import EngineArgs as EngineArgs
from core.library.inputs import PromptType as PromptType
from core.library.inputs import TextPrompt as TextPrompt
from core.library.inputs import TokensPrompt as TokensPrompt
from core.library.llm_engine import LLMEngine as LLMEngine
from core.library.shared_tensors import SharedTensors as SharedTensors
from core.llm import LLM as LLM
from core.version import __version__ as __version__

__all__: list[str]
