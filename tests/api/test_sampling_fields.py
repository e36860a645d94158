"""The table of sampling parameters has a row for each, and bodies of completions have the fields that it says they have."""

from core.api.sampling_params import SamplingParams
from core_apis.protocol.sampling import NOT_SERVED, GenerationRequest
from core_frontend.api.sampling_fields import FIELDS, field_names

TRANSLATED = {"prompt_logprobs", "structured_outputs"}
"""Fields of bodies that become parameters of the same name, but in a way of their own."""


def test_every_parameter_is_one_row() -> None:
    assert sorted(field.name for field in FIELDS) == sorted(SamplingParams.__struct_fields__)


def test_bodies_have_the_fields_that_the_table_says_they_have() -> None:
    shared = set(GenerationRequest.__struct_fields__) & set(SamplingParams.__struct_fields__)
    assert set(field_names(lambda field: field.in_bodies)) == shared - TRANSLATED - set(NOT_SERVED)
