"""The crash lab's third workload: orders that wait for a message, a date and a person, over a simulated month.

Owns the application, the driver that moves the clock while nothing is in flight or in doubt, and the audit that reads
the provider's book, the journal and the rows of cases, events, tasks and obligations. Refuses the plane's own opinion
of how an order ended. Invariant: each event ends one wait or is a dead letter, each task has one decision, each promise
that was not kept is one breach; else FAIL.
"""

from __future__ import annotations
