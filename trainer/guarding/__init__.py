"""Whether a version may be served: judged by what was learned last before it, and later by what users did with it."""
