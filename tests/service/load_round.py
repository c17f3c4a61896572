"""Send generated requests to a running service, and count the answers by status code.

- ``python -m tests.service.load_round requests --count 20000``: requests drawn from the OpenAPI document and
  mutations of them, valid and not, in a process that is asked over a socket of 127.0.0.1.
- ``python -m tests.service.load_round soak --minutes 30 --store postgresql``: clients that write, read and
  remove, while memory and open files of the service are measured.

A status of 500 and an answer without a reason are printed. 503 is allowed only while the store is cut off,
which never happens here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import torch

from tests.faults.input_round import JSON, REQUESTS, TEXTS, places, replaced
from tests.service.postgres import Cluster, why_not
from tests.service.running import FEATURES, ROWS, Server, fitted

SECONDS = 30  # for an answer; a longer one counts as a hang

HEADERS = ["Idempotency-Key", "Authorization", "Content-Type", "Accept", "Host", "If-None-Match", "Range"]


def measure(process: int) -> tuple[float, int]:
    """Return the resident memory of a process in MB, and the number of its open files."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{process}/fd"))


# --- generated requests -------------------------------------------------------------------------------


def of_schema(chance: random.Random, document: dict[str, Any], schema: dict[str, Any], depth: int = 0) -> Any:
    """Draw a JSON value that a schema of the document allows, or nearly."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if depth > 6 or chance.random() < 0.03:
        return chance.choice(JSON)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return of_schema(chance, document, chance.choice(schema[key]), depth + 1)
    if "enum" in schema or "const" in schema:
        return chance.choice(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object":
        required, fields = set(schema.get("required", ())), schema.get("properties", {})
        body = {
            name: of_schema(chance, document, part, depth + 1)
            for name, part in fields.items()
            if name in required or chance.random() < 0.5
        }
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            body |= {
                draw_name(chance): of_schema(chance, document, more, depth + 1)
                for _ in range(chance.randrange(3))
            }
        return body
    if kind == "array":
        items = schema.get("items") or {}
        return [of_schema(chance, document, items, depth + 1) for _ in range(chance.randrange(4))]
    drawn = {
        "string": lambda: draw_name(chance),
        "integer": lambda: chance.choice([0, 1, 5, -1, 2**31, 2**53 + 1, 2**63, chance.randrange(100)]),
        "number": lambda: chance.choice([0, 1, 3, 0.9, -2.5, 1e308, 5e-324, chance.random()]),
        "boolean": lambda: chance.random() < 0.5,
        "null": lambda: None,
    }
    return drawn.get(str(kind), lambda: chance.choice(JSON))()


def draw_name(chance: random.Random) -> str:
    """Draw the name of a row, a feature or a column, known in most cases."""
    known = [f"u{chance.randrange(ROWS)}", f"f{chance.randrange(FEATURES)}", "year", "genre", "tags", "new"]
    odd = ["".join(chance.choices(string.printable + "é☃\u202e\u0301𝔘", k=chance.randrange(12)))]
    return chance.choice([*known, *known, *odd, *TEXTS])


def draw_request(chance: random.Random, document: dict[str, Any]) -> tuple[str, str, Any, dict[str, str]]:
    """Return the method, the address, the body and the headers of a request."""
    headers = {}
    if chance.random() < 0.1:
        value = "".join(chance.choices(string.ascii_letters + " ,;=/*\x7f", k=chance.choice([0, 5, 300])))
        headers[chance.choice(HEADERS)] = value
    if chance.random() < 0.4:  # a known request with one part replaced
        method, path, body = chance.choice(REQUESTS)
        return method, path, replaced(body, chance.choice(places(body)), chance.choice(JSON)), headers
    path, methods = chance.choice(list(document["paths"].items()))
    method, operation = chance.choice([item for item in methods.items() if item[0] != "parameters"])
    query = []
    for parameter in [*methods.get("parameters", []), *operation.get("parameters", [])]:
        value = of_schema(chance, document, parameter.get("schema", {}))
        text = quote(str(value)[:200], safe="", errors="replace")
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", text)
        elif parameter["in"] == "query" and chance.random() < 0.7:
            query.append(f"{parameter['name']}={text}")
    content = operation.get("requestBody", {}).get("content", {})
    body = (
        of_schema(chance, document, next(iter(content.values()), {}).get("schema", {})) if content else None
    )
    if chance.random() < 0.03:
        method = chance.choice(["get", "post", "put", "delete", "patch", "options", "head", "trace"])
    return method.upper(), path + ("?" + "&".join(query) if query else ""), body, headers


def send(client: httpx.Client, chance: random.Random, document: dict[str, Any]) -> tuple[str, str]:
    """Send one request; return the outcome, and the request with its answer if that is a fault."""
    method, address, body, headers = draw_request(chance, document)
    content = b"" if body is None else json.dumps(body).encode(errors="replace")
    if chance.random() < 0.03:  # bytes that are no JSON
        at = chance.randrange(len(content) + 1)
        content = content[:at] + chance.randbytes(3) + content[at:]
    headers = {"content-type": "application/json", **headers}
    try:
        answer = client.request(method, address, content=content, headers=headers)
    except httpx.TimeoutException:
        return "hang", f"{method} {address} {content[:300]!r}"
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError, ValueError):
        return "not sent", ""
    except httpx.HTTPError as error:
        return "cut off", f"{method} {address} {content[:300]!r} {headers}: {error!r}"
    status = answer.status_code
    clear = status < 400 or method == "HEAD" or explains(answer)
    if status >= 500 or not clear:
        return str(status), f"{method} {address} {content[:300]!r} {headers}: {answer.text[:300]}"
    return str(status), ""


def explains(answer: httpx.Response) -> bool:
    """Return whether an error has a reason in words."""
    try:
        return bool(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return len(answer.text) > 3  # the server itself refuses what is not HTTP in plain text


def run_requests(server: Server, count: int, minutes: float, seed: int) -> Counter[str]:
    """Send ``count`` requests, or fewer if ``minutes`` are over; print faults, and return the outcomes."""
    chance, outcomes, end = random.Random(seed), Counter[str](), time.monotonic() + 60 * minutes
    with httpx.Client(base_url=server.address, timeout=SECONDS) as client:
        document = client.get("/openapi.json").json()
        while outcomes.total() - outcomes["not sent"] < count and time.monotonic() < end:
            outcome, fault = send(client, chance, document)
            outcomes[outcome] += 1
            if fault:
                print(f"{outcome}: {fault}", flush=True)
        if client.get("/ready").status_code != 200:
            print("the service is not ready any more")
    return outcomes


# --- the soak -----------------------------------------------------------------------------------------


class Client(threading.Thread):
    """A client that writes, reads and removes until it is stopped, and counts the status codes."""

    def __init__(self, address: str, own: int, seed: int, pause: float) -> None:
        super().__init__(daemon=True)
        self.address, self.own, self.pause = address, own, pause
        self.chance = random.Random(1000 * seed + own)
        self.stop = threading.Event()
        self.codes: Counter[str] = Counter()
        self.slowest = 0.0
        self.names: dict[str, list[str]] = {"rows": [], "features": []}

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=SECONDS) as client:
            number = 0
            while not self.stop.wait(self.pause):
                number += 1
                start = time.monotonic()
                try:
                    self.codes[str(self._ask(client, number))] += 1
                except httpx.HTTPError as error:
                    self.codes[type(error).__name__] += 1
                self.slowest = max(self.slowest, time.monotonic() - start)

    def _ask(self, client: httpx.Client, number: int) -> int:
        """Send one request; return its status."""
        chance = self.chance
        row, feature = f"u{chance.randrange(ROWS)}", f"f{chance.randrange(FEATURES)}"
        which, part = chance.choice(list(self.names.items()))
        choice = chance.random()
        if choice < 0.08 or (choice < 0.12 and not part):
            name = f"{which} {self.own} {number}"
            cells = {row: 4} if which == "features" else {feature: 2}
            answer = client.post(f"/v1/{which}", json={"name": name, "observations": cells})
            part.append(name)
            return answer.status_code
        if choice < 0.16 and part:  # removes as many as it adds, so that the model keeps its size
            name = part.pop(chance.randrange(len(part)))
            return client.delete(f"/v1/{which}/{quote(name)}").status_code
        if choice < 0.4:
            line = {"row": row, "feature": feature, "value": chance.randint(1, 5)}
            return client.post("/v1/observations", json={"observations": [line]}).status_code
        if choice < 0.6:
            return client.post("/v1/predict", json={"rows": [row], "features": [feature]}).status_code
        if choice < 0.7:
            return client.post("/v1/recommend", json={"row": row, "n": 3}).status_code
        if choice < 0.8:
            return client.post("/v1/explain", json={"row": row, "feature": feature}).status_code
        if choice < 0.9:
            return client.get(f"/v1/features/{feature}").status_code
        return client.post("/v1/observations", json={"observations": [{"row": row}]}).status_code  # 422


def soak(server: Server, minutes: float, seed: int, pause: float) -> tuple[Counter[str], float]:
    """Run clients for ``minutes``, and print memory and open files; return codes and the slowest answer."""
    assert server.process is not None
    process = int(server.process.pid or 0)
    clients = [Client(server.address, own, seed, pause) for own in range(4)]
    for client in clients:
        client.start()
    end, interval = time.monotonic() + 60 * minutes, 6 * minutes
    while time.monotonic() < end:
        time.sleep(min(interval, max(0.0, end - time.monotonic())))
        memory, files = measure(process)
        total = sum(client.codes.total() for client in clients)
        print(f"{total} requests, {memory:.0f} MB, {files} open files", flush=True)
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(SECONDS + 5)
    return sum((client.codes for client in clients), Counter()), max(client.slowest for client in clients)


def main() -> None:
    """Start a service and send requests, as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("round", choices=["requests", "soak"])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two requests of a client")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        fitted().save(Path(folder) / "m")
        if chosen.store == "postgresql":
            if reason := why_not():
                raise SystemExit(reason)
            with Cluster() as cluster:
                run(Path(folder) / "m", cluster.database(), chosen)
        else:
            run(Path(folder) / "m", f"sqlite:///{folder}/store.db", chosen)


def run(model: Path, url: str, chosen: argparse.Namespace) -> None:
    """Serve a model, send the requests of a round, and print the counts."""
    server = Server(model, url).start().wait(300)
    try:
        if chosen.round == "requests":
            outcomes = run_requests(server, chosen.count, chosen.minutes, chosen.seed)
        else:
            outcomes, slowest = soak(server, chosen.minutes, chosen.seed, chosen.pause)
            print(f"slowest answer {slowest:.2f} s")
    finally:
        server.kill()
    for outcome, count in sorted(outcomes.items()):
        print(f"{outcome:10} {count}")


if __name__ == "__main__":
    main()
