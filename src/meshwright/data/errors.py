"""What goes wrong with data, told for people."""


class DataError(ValueError):
    """The request or a file is wrong; the message names the file and, where there is one, the position."""


class DataWorkerError(RuntimeError):
    """A data worker failed or ended; the message names the worker and the task, the cause is chained."""
