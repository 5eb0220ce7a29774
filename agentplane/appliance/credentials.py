"""Files that hold credentials: who may read them.

Owns the sentence for a key, a token file or a secret that is missing or open to others. Refuses what anybody beside
root, the plane's uid and the plane's own groups may read or write. Invariant: no file is read here, and no sentence
holds anything but its path.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from agentplane.core import errors

if TYPE_CHECKING:
    from agentplane.appliance.settings import Located


def own_groups() -> frozenset[int]:
    """Groups whose members count as the plane: its own, and root's (the mask of an access list shows as that one)."""
    return frozenset({0, os.getegid(), *os.getgroups()})


def open_to_others(path: Path, what: str, *, needed: bool = True) -> str | None:
    """Why ``what`` at ``path`` is not kept: missing, no file, or open to others; None where it is kept."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"{what} {path} is missing." if needed else None
    except OSError as error:
        return f"{what} {path} cannot be read: {error.strerror}."
    if not stat.S_ISREG(found.st_mode):
        return f"{what} {path} is no file."
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        return f"{what} {path} is owned by uid {found.st_uid}, neither root nor the plane's; `chown` it."
    if mode & stat.S_IRWXO or mode & (stat.S_IWGRP | stat.S_IXGRP):
        return f"{what} {path} has mode {mode:04o} and is open to others; `chmod o-rwx,g-wx {path}`."
    if mode & stat.S_IRGRP and found.st_gid not in own_groups():
        return (
            f"{what} {path} may be read by the group {found.st_gid}, which is not the plane's; "
            f"`chgrp {os.getegid()} {path}`, or `chmod g-r {path}`."
        )
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"{what} {path} cannot be read by uid {os.geteuid()}."
    return None


def is_closed(directory: Path) -> bool:
    """Whether nobody but root, the plane's uid and its groups gets into ``directory``."""
    try:
        found = directory.stat()
    except OSError:
        return False
    strangers = stat.S_IXOTH if found.st_gid in own_groups() else stat.S_IXOTH | stat.S_IXGRP
    return not found.st_mode & strangers and found.st_uid in (0, os.geteuid())


def open_secret(directory: Path, name: str) -> str | None:
    """The same of a declared secret; the mode of a file says nothing where nobody else gets into its directory."""
    if is_closed(directory):
        return None
    return open_to_others(directory / name, "The secret")


def findings(located: Located) -> list[str]:
    """A sentence for each credential of the listeners that is missing or open to others."""
    plane = located.plane
    found = [open_to_others(located.path("tokens"), "The token file", needed=False)]
    if plane.tls_key is not None:
        found.append(open_to_others(located.path_of(plane.tls_key), "The TLS key"))
    return [one for one in found if one is not None]


def check_credentials(located: Located) -> None:
    """Raises Settings with the first finding."""
    for sentence in findings(located):
        raise errors.Settings(sentence)
