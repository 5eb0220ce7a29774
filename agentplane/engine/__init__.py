"""What runs: admission, execution, recovery, and the effect protocol between them.

Owns the nurseries of runs and the order announce, act, record. Refuses to decide what ``core`` decides and to write
what ``journal`` writes. Invariant: no act begins before a commit that holds its announcement (W6).
"""

from __future__ import annotations
