"""What the spine costs on this disk: counted where it can be counted, timed where it must be.

Owns the rows of ``agentplane bench``. Refuses to judge: it prints floors beside figures and leaves targets to the docs.
Invariant: what is counted and what is timed are never taken in the same pass, for counting costs time.
"""

from __future__ import annotations
