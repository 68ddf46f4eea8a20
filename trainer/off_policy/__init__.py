"""Off-policy evaluation: how another policy would have done, estimated from logged impressions."""
