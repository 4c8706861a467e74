"""A first look at a GPU in a stated number of minutes: what to prepare, what runs there, and what comes back."""
