"""The loader that reads safetensors through the Run:ai model streamer."""
