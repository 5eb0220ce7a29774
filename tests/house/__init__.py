"""What the tests of the house's shape share: the source as trees, the walls as rules, the ratchets.

It owns no rule's text: those stand in tests/tidy.toml. Each rule is a function from a package directory to a
list of violations, one line each, so that a planted violation in a temporary directory goes through the same
code as the product.
"""

from __future__ import annotations
