"""The crash lab's second workload: orders that succeed, fail and are cancelled while the appliance dies under them.

Owns the application (a group, a plan with two branches and a pivot, a ledger in the journal's file), the driver, and
the audit that reads the provider's book, the ledger and the journal. Refuses the engine's own opinion of what stands.
Invariant: an order ends whole, taken back, held by its pivot, or with its run quarantined and named; else FAIL.
"""

from __future__ import annotations
