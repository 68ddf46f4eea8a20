"""From a request's hash to what is known of it."""
