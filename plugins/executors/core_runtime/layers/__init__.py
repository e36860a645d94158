"""What models are made of: linear, norm and rotary layers over kernels with explicit outputs, and reference kernels."""
