"""What an author writes: effects, skills, and the types handed to them.

Owns the declarations and what an effect may raise. Refuses to run anything: a call description does nothing until a
step does it. Invariant: a mistake in a declaration is told when the module is imported, with its name.
"""

from __future__ import annotations
