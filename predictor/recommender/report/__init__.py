"""Reports on recommenders and on sharding plans."""
