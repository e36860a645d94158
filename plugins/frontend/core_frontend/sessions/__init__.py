"""Sessions: conversations whose earlier answers keep the tokens that were sampled."""
