"""The provider's book of an order's deeds: each is an effect, and what takes one back names the one that it is of."""

from __future__ import annotations

from typing import Any

from agentplane.lab.provider import audit
from agentplane.lab.provider_process import Provider


def post(provider: Provider, path: str, key: str, **body: Any) -> tuple[int, Any]:
    status, _, said = provider.request("POST", path, {"order": "O-1", **body}, headers={"Idempotency-Key": key})
    return status, said


def test_a_reversal_names_its_deed_and_is_recognised_by_its_key(provider: Provider) -> None:
    """201 with the deed in ``of``; the same key is its replay; the deeds of an order are listed with their paths."""
    _, parcel = post(provider, "/parcels", "p")
    status, back = post(provider, "/returns", "r", of=parcel["id"])
    assert (status, back["of"]) == (201, parcel["id"])
    assert post(provider, "/returns", "r", of=parcel["id"]) == (200, back)
    rows = provider.request("GET", "/deeds?order=O-1")[2]
    assert [(row["path"], row.get("of")) for row in rows] == [("/parcels", None), ("/returns", parcel["id"])]
    with audit.open_book(provider.db) as book:
        assert [(row.ref, row.undoes) for row in audit.effects(book)] == [
            (parcel["id"], None), (back["id"], parcel["id"])
        ]  # fmt: skip


def test_what_was_never_done_cannot_be_taken_back(provider: Provider) -> None:
    """422, and no row: for an unknown reference, for a deed of another kind or order, and for none at all."""
    _, parcel = post(provider, "/parcels", "p")
    assert post(provider, "/returns", "a", of="pc_999999")[0] == 422
    assert post(provider, "/credits", "b", of=parcel["id"])[0] == 422
    assert post(provider, "/returns", "c", of=parcel["id"], order="O-2")[0] == 422
    assert post(provider, "/returns", "d")[0] == 422
    with audit.open_book(provider.db) as book:
        assert [row.path for row in audit.effects(book)] == ["/parcels"]
        assert [one.verdict for one in audit.answers(book)] == ["created", *["unknown_deed"] * 3, "invalid"]
