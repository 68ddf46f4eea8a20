"""From log rows to hashed examples: what a batch of tokens becomes before it can be learned."""
