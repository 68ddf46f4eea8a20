"""Publishes versions: snapshots and deltas, the guard, automatic rollback."""
