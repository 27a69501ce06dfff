"""The pages for people, each one file that asks for nothing else: what they share is put in when they are read."""

from importlib import resources

SHARED = ("shared.css", "shared.js")


def page(name: str) -> bytes:
    """A page with the style and the functions that all pages share.

    >>> b"shared.css" in page("page.html")
    False
    """
    folder = resources.files("departing.service.api")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    for shared in SHARED:
        text = text.replace(f"/* {shared} */", folder.joinpath(shared).read_text(encoding="utf-8"))
    return text.encode()
