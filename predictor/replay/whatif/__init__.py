"""A traced step on other hardware, with other batches, buckets and precisions."""
