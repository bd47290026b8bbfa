"""From logits to tokens: parameters, the sampler, stop strings."""
