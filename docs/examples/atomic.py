"""A row of the application's own ledger, written by the very commit that records it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from agentplane import GroupAborted, Plane, skill, sql

LEDGER = "CREATE TABLE app_ledger (id TEXT PRIMARY KEY, amount_minor INTEGER NOT NULL CHECK (amount_minor > 0)) STRICT;"


@skill("ledger.post")
async def post(cx, request: dict) -> str:
    try:
        async with cx.group("posting", ["ledger"]) as g:
            g.atomic("ledger", sql("INSERT INTO app_ledger VALUES (?, ?)", request["id"], request["amount"], rows=1))
            await g.commit()
    except GroupAborted as stopped:
        return stopped.stopped_by
    return "posted"


async def main(store: Path) -> None:
    async with Plane.open(store, skills=[post]) as plane:
        for amount in (4200, -1):
            outcome = await plane.run("ledger.post", {"id": f"e{amount}", "amount": amount})
            print(outcome.output)
        print(await plane.read(lambda tx: tx.all("SELECT id, amount_minor FROM app_ledger")))


async def create(store: Path) -> None:
    async with Plane.open(store):
        pass


with tempfile.TemporaryDirectory() as directory:
    path, script = Path(directory) / "plane.db", Path(directory) / "ledger.sql"
    script.write_text(LEDGER)
    trio.run(create, path)
    migrate = ["app-sql", "--store", str(path), str(script)]
    subprocess.run([sys.executable, "-m", "agentplane.cli.main", *migrate], check=True, stdout=subprocess.DEVNULL)
    trio.run(main, path)
