"""The crash lab: how the appliance dies, and what the two books say afterwards.

This room owns the payment provider that is a process of its own, the apps that call it, the drivers
that kill the appliance at chosen instants, and the audit of both books. It refuses to believe what it did
not measure: a crash window is attributed from the journal and the provider's times, never from what the
driver meant to hit. Its invariant: nothing here is imported by the code under test.
"""

from __future__ import annotations
