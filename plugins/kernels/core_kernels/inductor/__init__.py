"""Operations of the reference, compiled by torch."""
