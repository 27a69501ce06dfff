"""HTML pages, each served as one self-contained file."""

from importlib import resources

SHARED = ("shared.css", "shared.js")


def page(name: str) -> bytes:
    """Return a page with the shared style sheet and script inlined.

    >>> b"shared.css" in page("dashboard.html")
    False
    """
    folder = resources.files("departing.service.api").joinpath("static")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    for shared in SHARED:
        text = text.replace(f"/* {shared} */", folder.joinpath(shared).read_text(encoding="utf-8"))
    return text.encode()
