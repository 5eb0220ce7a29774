"""What outlives a run: matters, messages, tasks of people, obligations, schedules.

Owns the statements over one transaction that the engine's units are made of, and the reckoning of calendars. Refuses to
decide when anything is done: the engine does. Invariant: every claim is one conditional statement, so that of two who
ask at once one gets it.
"""

from __future__ import annotations
