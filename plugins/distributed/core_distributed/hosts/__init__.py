"""Ranks of several hosts: how they meet, how their processes exchange bytes, and who watches over them."""
