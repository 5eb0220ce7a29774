"""Restate's side: ``ctx.run`` in a service handler, called through the server's HTTP ingress.

Owns the server's process, its ports and configuration for one round. The server is what the package ships, with its
defaults; only ports, the data directory, telemetry and the log are set. Refuses to measure before the deployment is
registered. Invariant: the server this started has ended when this ends.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import hypercorn.asyncio
import hypercorn.config
import restate
from sizes import Form, answer, asked, say, timed

START_S = 60.0
HOME = "127.0.0.1"
CALL_S = 120.0

steps_service = restate.Service("peers")


async def act(number: int) -> dict[str, Any]:
    """A step that is answered at once."""
    return answer(number)


@steps_service.handler()
async def flow(ctx: restate.Context, steps: int) -> int:
    """``steps`` durable steps, one after the other."""
    done = 0
    for number in range(steps):
        got = await ctx.run_typed(f"step-{number}", act, number=number)
        done += bool(got["accepted"])
    return done


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind((HOME, 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def settings(directory: Path, ports: list[int]) -> dict[str, str]:
    """The server's environment: where it listens and stores; everything else is its own default."""
    ingress, admin, node, _ = ports
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("RESTATE_")},
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BASE_DIR": str(directory),
        "RESTATE_INGRESS__BIND_ADDRESS": f"{HOME}:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{HOME}:{admin}",
        "RESTATE_BIND_ADDRESS": f"{HOME}:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://{HOME}:{node}",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }


def started(server: Path, environment: dict[str, str], out: BinaryIO) -> subprocess.Popen[bytes]:
    """The server's process, in this one's group, so that whoever ends the group ends it too."""
    return subprocess.Popen(
        [str(server), "--no-logo"], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
    )


def last_words(log: Path) -> str:
    words = log.read_text("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
    return words[0][:300]


@asynccontextmanager
async def served(server: Path, environment: dict[str, str], log: Path, ports: list[int]) -> AsyncIterator[None]:
    """The server and, in this process, the endpoint; ready when the handlers are registered."""
    config = hypercorn.config.Config()
    config.bind = [f"{HOME}:{ports[3]}"]
    config.errorlog = None
    ended = asyncio.Event()
    with log.open("wb") as out:
        process = started(server, environment, out)
        endpoint = asyncio.create_task(
            hypercorn.asyncio.serve(restate.app([steps_service]), config, shutdown_trigger=ended.wait)
        )
        try:
            await registered(process, f"http://{HOME}:{ports[1]}", f"http://{HOME}:{ports[3]}", log)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            ended.set()
            await endpoint


async def registered(process: subprocess.Popen[bytes], admin: str, endpoint: str, log: Path) -> None:
    """Wait for the server and tell it where the handlers are."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        deadline = asyncio.get_running_loop().time() + START_S
        while asyncio.get_running_loop().time() < deadline and process.poll() is None:
            try:
                got = await client.post(f"{admin}/deployments", json={"uri": endpoint})
                if got.status_code in (200, 201):
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
    raise SystemExit(f"The Restate server did not take the handlers within {START_S:.0f} s: {last_words(log)}")


def durability(server: Path, environment: dict[str, str]) -> str:
    """What the server's own configuration says of its logs, and what that means here."""
    config = tomllib.loads(told(server, environment, "--dump-config"))
    unsynced = config.get("log-server", {}).get("rocksdb-disable-wal-fsync")
    found = (
        f"bifrost.default-provider={config.get('bifrost', {}).get('default-provider')}",
        f"log-server.rocksdb-disable-wal-fsync={str(unsynced).lower()}",
        f"default-replication={config.get('default-replication')}",
    )
    how = "without a sync" if unsynced else "with a sync of RocksDB's log that appends of one moment share"
    return (
        f"RocksDB on one node, found {', '.join(found)}: a step's command and its result are appended to the log {how};"
        " the next step waits for the result's append"
    )


def told(server: Path, environment: dict[str, str], question: str) -> str:
    """What the server's program prints and leaves."""
    done = subprocess.run([str(server), question], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


async def main() -> None:
    args = asked("Restate's side of the comparison", ("ingress",))
    if args.server is None:
        raise SystemExit("Restate's side needs --server, the path of restate-server.")
    ports = free_ports(4)
    environment = settings(args.directory, ports)
    url = f"http://{HOME}:{ports[0]}/peers/flow"
    limits = httpx.Limits(max_connections=args.flows, max_keepalive_connections=args.flows)
    async with (
        served(args.server, environment, args.directory / "server.log", ports),
        httpx.AsyncClient(timeout=CALL_S, trust_env=False, limits=limits) as client,
    ):

        async def one(name: str, steps: int) -> int:
            return int((await client.post(url, json=steps)).raise_for_status().json())

        async def together(names: list[str], steps: int) -> list[int]:
            return await asyncio.gather(*(one(name, steps) for name in names))

        measured = await timed(args, [Form("ingress", one, together)])
    said = durability(args.server, environment)
    numbers = re.findall(r"\d+\.\d+\.\d+", told(args.server, environment, "--version")) or ["of unknown version"]
    say("Restate", f"{numbers[0]} (SDK {version('restate-sdk')})", said, measured)


if __name__ == "__main__":
    asyncio.run(main())
