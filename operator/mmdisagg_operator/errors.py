"""What the API server refuses.

ApiError                     an answer that is no success
├── InvalidObjectError       400, 422, some 500: the object is wrong, or a policy refuses it
└── ConflictError            409: another version or another owner was there first
UnreachableError             no answer: connection refused, reset, timed out
"""


class ApiError(Exception):
    """The API server answered a request with an error.

    Attributes:
        status: HTTP status.
        reason: Kubernetes' reason in one word, such as `Forbidden`.
        message: the server's own words.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class InvalidObjectError(ApiError):
    """The object breaks a rule of its kind or of a policy; soon the same request would fail again."""


class ConflictError(ApiError):
    """The object has changed meanwhile, or another field manager owns what was to be set."""


class UnreachableError(Exception):
    """The API server did not answer."""
