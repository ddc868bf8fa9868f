"""Define the failures of an HTTP exchange that end it before its answer is complete."""


class HttpFailure(Exception):
    """No complete answer. The text says why, in lower-case words; it names no header and no query."""


class InvalidAddressError(HttpFailure):
    """The address is none that a request can be sent to."""


class UnsendableRequestError(HttpFailure):
    """A header or the proxy's address cannot be put on the wire."""


class NoConnectionError(HttpFailure):
    """The server was not found, or takes no connections."""


class SlowConnectionError(HttpFailure):
    """No connection within `CONNECT_TIMEOUT_S`."""


class TlsError(HttpFailure):
    """No encryption could be agreed upon."""


class CertificateError(TlsError):
    """The server's certificate is not one to trust."""


class NoProxyError(HttpFailure):
    """The proxy was not found, or takes no connections."""


class ProxyRefusalError(HttpFailure):
    """The proxy does not lead to the server; `status` is its HTTP status, 0 for a SOCKS proxy."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class NoAnswerError(HttpFailure):
    """The server closed the connection without a word."""


class CutOffAnswerError(HttpFailure):
    """The connection ended in the middle of an answer."""


class NotHttpError(HttpFailure):
    """The server's answer is not HTTP."""


class BrokenCompressionError(HttpFailure):
    """The body cannot be unpacked."""


class UnknownCompressionError(HttpFailure):
    """The body is packed with `encoding`, which was not asked for."""

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding)
        self.encoding = encoding


class OversizedAnswerError(HttpFailure):
    """The answer is longer than was allowed, as it came or unpacked."""
