"""The one error a user can cause."""


class InputError(ValueError):
    """Bad input, told in one sentence that names the field, its value and what is allowed."""


class MissingExtraError(InputError, ImportError):
    """A part that needs an extra which is not installed."""
