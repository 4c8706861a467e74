"""Time single calls: operators, collectives, hardware and the regressors that time them."""
