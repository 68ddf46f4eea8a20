"""The item's side of a score: what is known of items before any request comes."""
