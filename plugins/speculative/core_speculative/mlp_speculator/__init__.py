"""The speculative plugin `mlp_speculator`: a state that is passed from draft to draft and updated with each drawn
token.
"""
