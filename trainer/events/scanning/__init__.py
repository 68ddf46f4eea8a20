"""Events by whole blocks: one pass notes where each wanted value stands, and columns are made of the bytes in place."""
