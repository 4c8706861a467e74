"""Reports on a search: ranking, bill, numbers of GPUs."""
