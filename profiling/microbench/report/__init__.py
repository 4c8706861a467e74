"""One HTML page of what a system measured and how well its regressors repeat it, self-contained."""
