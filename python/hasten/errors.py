"""The engine's exceptions. All are RuntimeErrors, as those of Gloo are, so that programs that catch those go on."""


class Error(RuntimeError):
    """Whatever the engine raises by itself."""


class UsageError(Error, ValueError):
    """The caller or the configuration is wrong."""


class CommError(Error):
    """A peer, the network or a timeout: the message names the rank that failed, or is missing, and the reason."""


class DataError(Error):
    """A file, a dataset or a checkpoint cannot be read as what it should be."""


class InternalError(Error):
    """A promise that the engine makes to itself is broken: please report it with the message."""
