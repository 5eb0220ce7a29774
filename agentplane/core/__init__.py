"""What is true: pure values and decisions.

Owns every rule that can be stated over values. Refuses I/O, clocks, randomness, trio and logging: a caller
brings the milliseconds and the entropy. Invariant: importing this room imports nothing of agentplane but
itself.
"""

from __future__ import annotations
