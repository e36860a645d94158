"""Building blocks of models: linear, norm and rotary layers over kernels with explicit outputs, and reference kernels."""
