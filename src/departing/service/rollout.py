"""What a service offers: categories, published policies and who gets which, and whether the caller decides."""

import json

from departing.model.errors import InputError
from departing.service.policy_version import Version, Versions
from departing.service.store.base import Store, Write
from departing.service.store.schema import SET, UNSET


class NotFoundError(InputError):
    """There is nothing of that name."""


class Catalogue:
    """The same for all processes that serve from a store: each takes up what others changed by `refresh`."""

    def __init__(self, store: Store, most: int, shadow: bool) -> None:
        self._store, self._most = store, most
        self.names: list[str] = []
        self.retired: set[int] = set()
        self.shown: list[int] = []  # the categories that are not retired
        self.versions = Versions()
        self.shadow, self._shadow_unless_told = shadow, shadow
        self.pinned: int | None = None
        self.reset()
        store.undone = self.reset

    def reset(self) -> None:
        """Read everything anew: what is known here may be of a call that came to nothing."""
        self._reload()
        self.versions = self._with_new(Versions())

    def _with_new(self, versions: Versions) -> Versions:
        """Add what was published meanwhile."""
        newest = max(versions.known, default=-1)
        rows = self._store.rows("SELECT * FROM policies WHERE version > ? ORDER BY version", newest)
        for row in rows:
            versions.publish(Version.of_row(*row))
        if rows:
            self._take_allotments(versions)
        return versions

    def _reload(self) -> None:
        """Read what other processes may have changed."""
        found = self._store.categories()
        self.names = [name for name, _ in found]
        self._retire({a for a, (_, retired) in enumerate(found) if retired})
        kept = self._store.meta()
        self.shadow = kept.get("shadow", str(int(self._shadow_unless_told))) == "1"
        self.pinned = int(kept["pinned"]) if "pinned" in kept else None

    def refresh(self) -> bool:
        """Take up what a trainer has published, and other processes have changed; whether there is a new policy."""
        before = len(self.versions.known)
        self._with_new(self.versions)
        if self._store.shared:
            self._reload()
        return len(self.versions.known) > before

    def catch_up(self, version: int, categories: int) -> None:
        """Take up what another process published or added, if there is something of that which we do not know yet."""
        if version not in self.versions.known or categories > len(self.names):
            self.refresh()

    def _take_allotments(self, versions: Versions) -> None:
        """Begin to give new users what was published: whoever takes it up first says from which user on."""
        rows = self._store.rows("SELECT version, users FROM allotments ORDER BY place")
        if not rows or not {number for number, _ in rows} <= set(versions.known):
            return
        *parts, (current, _) = rows
        key = f"first {max(versions.known)}"
        first = self._store.meta().get(key)
        if first is None:
            first = str(self._store.next_number())
            self._store.write(("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING", (key, first)))
            if self._store.shared:
                first = self._store.meta()[key]
        versions.allot(parts, current, int(first))

    def publish(self, version: Version) -> None:
        """Publish a version, under the next number, and give it to all new users."""
        version.number = max(self.versions.known, default=-1) + 1
        self.versions.publish(version)
        self.versions.allot([], version.number)
        self._store.write(
            ("INSERT INTO policies VALUES (?, ?, ?, ?)", version.row()), *allotments([], version.number)
        )
        if version.given:
            self._store.write((SET, ("instance", json.dumps(version.about["instance"]))))

    def version_of(self, number: int) -> int:
        """The version of the policy for the user of this number."""
        return self.pinned if self.pinned in self.versions.known else self.versions.assign(number)

    @property
    def current(self) -> Version:
        """The version that new users get, but those who are to try others."""
        return self.versions[self.pinned if self.pinned in self.versions.known else self.versions.current]

    def switch(self, number: int | None) -> None:
        """Give new users a version of the past, until told otherwise; None for the latest again."""
        if number is not None and number not in self.versions.known:
            self.refresh()
        if number is not None and number not in self.versions.known:
            raise NotFoundError(f"There is no version {number} of the policy.")
        self.pinned = number
        self._store.write((UNSET, ("pinned",)) if number is None else (SET, ("pinned", str(number))))

    def set_shadow(self, shadow: bool) -> None:
        """Let the caller decide, or decide ourselves from now on."""
        self.shadow = shadow
        self._store.write((SET, ("shadow", str(int(shadow)))))

    def category(self, name: str) -> int:
        """The index of a category."""
        if name not in self.names and self._store.shared:
            self._reload()
        if name not in self.names:
            known = ", ".join(map(repr, self.names[:10]))
            raise InputError(f"category is {name!r:.60}; known are {known}.")
        return self.names.index(name)

    def _retire(self, retired: set[int]) -> None:
        self.retired = retired
        self.shown = [a for a in range(len(self.names)) if a not in retired]

    def add(self, name: str, now: float) -> None:
        """Add a category, or take one back that was retired."""
        if self._store.shared:
            self._reload()
        if name in self.names and self.names.index(name) not in self.retired:
            raise InputError(f"name is {name!r:.60}; there is such a category.")
        if name in self.names:
            self._retire(self.retired - {self.names.index(name)})
            self._store.write(("UPDATE categories SET retired = NULL WHERE name = ?", (name,)))
        elif len(self.names) >= self._most:
            raise InputError(f"There are {len(self.names)} categories, as many as are allowed.")
        else:
            self.names.append(name)
            self._retire(self.retired)
            self._store.write(category_row(len(self.names) - 1, name, now))

    def retire(self, name: str, now: float) -> None:
        """Show a category no more."""
        category = self.category(name)
        if len(self.names) - len(self.retired | {category}) < 1:
            raise InputError(f"name is {name!r:.60}; it is the last category that is shown.")
        self._retire(self.retired | {category})
        self._store.write(("UPDATE categories SET retired = ? WHERE name = ?", (now, name)))


def category_row(category: int, name: str, now: float) -> Write:
    """The write of a new category."""
    return "INSERT INTO categories VALUES (?, ?, ?, NULL)", (category, name, now)


def allotments(parts: list[tuple[int, int]], current: int) -> list[Write]:
    """The writes of what new users get: so many each in turn, then `current` for all."""
    listed = [*parts, (current, 0)]
    inserts = [("INSERT INTO allotments VALUES (?, ?, ?)", (i, *part)) for i, part in enumerate(listed)]
    return [("DELETE FROM allotments", ()), *inserts]
