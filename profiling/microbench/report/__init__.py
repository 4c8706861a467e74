"""One self-contained HTML page: measurements of a system, and how well its regressors fit them."""
