"""Published versions of a model: publishing, activation, delta chains, leases, guards and experiments."""
