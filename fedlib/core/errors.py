"""The one error a user meets: a sentence saying what was wrong, what is allowed, what to do."""


class FedlibError(ValueError):
    """Bad input or an unusable file; the command line prints it as one sentence and exits with 2."""


class Diverged(FedlibError):
    """A non-finite loss or update, with the round and the client that produced it."""

    def __init__(self, message: str, round: int, client: int | None):
        super().__init__(message)
        self.round, self.client = round, client
