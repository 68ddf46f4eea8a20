"""Publishing of a model that learns: snapshots and deltas, the guard, automatic rollback, and the online metrics."""
