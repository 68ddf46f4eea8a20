"""The supervisor: it follows the store, keeps the last good models, and starts, feeds and replaces workers."""
