"""Models of the sizes that people use, with random weights: their files, the figures beside other engines, the report."""
