"""Headers of responses. Each list is made once, because every request sends one."""

JSON = "application/json"
PROBLEM = "application/problem+json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
HTML = "text/html; charset=utf-8"
NOTHING = "default-src 'none'; frame-ancestors 'none'"  # content security policy of data
PAGE = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

Headers = list[tuple[str, str]]


def response_headers(media: str, policy: str = NOTHING) -> Headers:
    """Return the headers of a response of this media type, with those that protect a browser's user."""
    return [
        ("content-type", media),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", policy),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    ]


JSON_HEADERS, PROBLEM_HEADERS, METRICS_HEADERS = map(response_headers, (JSON, PROBLEM, METRICS))
PAGE_HEADERS = response_headers(HTML, PAGE)
