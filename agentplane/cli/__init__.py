"""The terminal: parse, connect, render.

Owns argument parsing and output. Refuses decisions: a verb calls an operation. Invariant: what is not the answer
goes to
standard error.
"""

from __future__ import annotations
