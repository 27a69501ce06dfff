"""Errors that invalid input causes."""


class InputError(ValueError):
    """Invalid input; the message states the field, its value and the accepted values.

    Parameters
    ----------
    message : str
        One sentence, and the next step where there is one. Parameters it mentions stand in backticks, as in
        "set `max_steps`"; the command line prints its options in their place.
    parameter : str, optional
        Name of the invalid parameter, if the message starts with it. The command line replaces it by its option.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter

    code: str = "invalid_request"  # stable and machine-readable; the HTTP API reports it


class MissingExtraError(InputError, ImportError):
    """An optional part of the package whose extra is not installed."""
