"""Record the steps of a HugeCTR configuration, with its operators and collectives."""
