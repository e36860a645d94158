"""Transcriptions and translations of sounds, as OpenAI's API has them."""
