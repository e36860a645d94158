"""What a step gives besides tokens: prompt logprobs, pooled states, facts of answers."""
