"""The loader that reads safetensors through the fastsafetensors library."""
