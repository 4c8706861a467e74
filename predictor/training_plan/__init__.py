"""Plan a training: which machine, which layout, by when, for how much, and how sure; a search over searches."""
