"""Search for the fastest sharding of a recommender's embedding tables."""
