"""Errors of the package; each message is one line."""


class HugeCtrError(ValueError):
    """Base of all errors: a configuration, a file or a call that cannot be used."""


class DataError(HugeCtrError):
    """A data file that is missing, torn or not of its format; the message names the file and the place."""


class EmbeddingOverflowError(HugeCtrError):
    """An embedding table met more keys than it has room for."""
