"""What can go wrong with a request, and what the client is told.

RouterError
├── InvalidRequestError      400  the request breaks a rule of the API or of this deployment
├── ModelNotFoundError       404  another model's name
├── TooLargeError            413  the body is larger than the media limits allow
├── UnsupportedEncodingError 415  the body is compressed
├── InternalError            500  the router itself failed; its log has the traceback
├── EngineRefusedError       4xx  an engine refused; its status and message, never retried
├── OverloadedError          429  as many requests are in flight as may be
├── NotReadyError            503  no complete set of agreeing engines
└── StageError                    a stage gave no usable answer
    ├── UnreachableError     502  no connection, or it broke before an answer
    ├── EngineFailedError    502  the engine answered 5xx, or something that is no answer
    ├── StageTimeoutError    504  a deadline passed
    └── PromptMismatchError  500  decode's prompt is not prefill's: the answer would be another prompt's
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

RETRY_AFTER_SECONDS: Final = 2


class RouterError(Exception):
    """A failed request.

    Attributes:
        message: for the client; names the field, the value or limit, and what to do.
        param: the request field at fault, or None.
        status: HTTP status.
        kind: `error.type` of the body.
        code: `error.code` of the body; stable, for programs.
    """

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the error in the shape of the OpenAI API."""
        fields = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": fields}

    def json(self) -> bytes:
        """Return `body` as JSON."""
        return msgspec.json.encode(self.body())

    def headers(self) -> dict[str, str]:
        """Return the extra response headers that this error calls for."""
        return {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.status in (429, 503) else {}


class InvalidRequestError(RouterError):
    """The client must change its request."""

    status = 400
    kind = "invalid_request_error"
    code = "invalid_value"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code or type(self).code


class ModelNotFoundError(RouterError):
    """The client asked for a model that this deployment does not serve."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class TooLargeError(RouterError):
    """The body exceeds what the media limits of the deployment can need."""

    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"


class UnsupportedEncodingError(RouterError):
    """The body is compressed: its size could not be bounded before it is unpacked."""

    status = 415
    kind = "invalid_request_error"
    code = "unsupported_encoding"


class InternalError(RouterError):
    """The router failed in a way that it did not foresee; the log has the cause."""

    status = 500
    code = "internal_error"


class EngineRefusedError(RouterError):
    """An engine refused its leg with a 4xx: the client's fault, passed through."""

    kind = "invalid_request_error"

    def __init__(
        self,
        status: int,
        message: str,
        kind: str | None = None,
        param: str | None = None,
        code: object = None,
    ) -> None:
        super().__init__(message, param)
        self.status = status
        self.kind = kind or type(self).kind
        self.code = code if isinstance(code, str) else "engine_refused"


class OverloadedError(RouterError):
    """As many requests are in flight as may be; the body of this one was not read."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"


class NotReadyError(RouterError):
    """The engines are not all known yet, or do not agree."""

    status = 503
    code = "not_ready"


class StageError(RouterError):
    """One stage gave no usable answer.

    Attributes:
        stage: `encode`, `prefill` or `decode`.
    """

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(f"{stage} stage: {message}")
        self.stage = stage


class UnreachableError(StageError):
    """The engine could not be reached, or the connection broke before an answer was complete."""

    status = 502
    code = "engine_unreachable"


class EngineFailedError(StageError):
    """The engine answered with a server error, or with something that is no answer."""

    status = 502
    code = "engine_failed"


class StageTimeoutError(StageError):
    """The stage, or the request as a whole, ran past its deadline."""

    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"


class PromptMismatchError(StageError):
    """Two stages saw different prompts; nothing of the answer may reach the client."""

    code = "prompt_mismatch"
