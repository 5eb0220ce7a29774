"""Which build this is.

Owns the version. Refuses anything else. Invariant: it is the version that the package is published under.
"""

from __future__ import annotations

__version__ = "0.1.0"
