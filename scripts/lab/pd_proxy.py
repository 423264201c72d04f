"""A small prefill/decode gateway, and a wire in front of the prefill engine, both with a switch for transfer faults.

    pd_proxy.py --prefill URL --decode URL --port N --wire N

The gateway (--port) sends a completion to prefill for one token and then, with the transfer parameters that came back,
to decode. The wire (--wire) passes everything to prefill, for a client that sends both legs itself. On either,

    POST /fault {"kind": "reversed"}                        what is done to transfer parameters from now on
    POST /fault {"kind": "wrong_engine", "swallow": true}   the gateway also hides errors of decode: 200, empty body

changes the parameters between the legs, of prompts of a hundred tokens or more: a client's first short questions are
to come through. Kind "none" ends it. Setting a kind first sends a prompt of the proxy's own
through both engines: the blocks it leaves on prefill are the foreign ones. Standard library only.
"""

import argparse
import copy
import http.client
import json
import random
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LIMIT_S = 300
FOREIGN_TOKENS = 1300
FEWEST_TOKENS = 100
NOT_PASSED_ON = {"host", "content-length", "connection", "transfer-encoding", "accept-encoding", "date", "server"}
ASK_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

Params = dict[str, Any]
Rewrite = Callable[[Params, Params], "Params | None"]


# -- Faults: from a prompt's own transfer parameters and a foreign prompt's to what decode is given ----------------
def with_blocks(change: Callable[[list[int], list[int]], list[int]]) -> Rewrite:
    """Another choice of blocks, of the same number: decode does not survive fewer."""

    def rewrite(own: Params, foreign: Params) -> Params:
        mine = own["remote_block_ids"]
        changed = [change(list(one), list(other)) for one, other in zip(mine, foreign["remote_block_ids"], strict=True)]
        if changed == mine or [len(each) for each in changed] != [len(each) for each in mine]:
            raise ValueError(f"blocks {mine} became {changed}: nothing is planted")
        return own | {"remote_block_ids": changed}

    return rewrite


def swap_inner(mine: list[int]) -> list[int]:
    return [mine[0], mine[2], mine[1], *mine[3:]]


def stale(own: Params, foreign: Params) -> Params:
    """Everything of the foreign request, for as many blocks and tokens as this one has."""
    blocks = with_blocks(lambda mine, theirs: theirs[: len(mine)])(own, foreign)
    kept = {"remote_block_ids": blocks["remote_block_ids"], "remote_num_tokens": own.get("remote_num_tokens")}
    return copy.deepcopy(foreign) | kept


FAULTS: dict[str, Rewrite] = {
    "none": lambda own, _: own,
    "reversed": with_blocks(lambda mine, _: mine[::-1]),
    "foreign_blocks": with_blocks(lambda mine, theirs: theirs[: len(mine)]),
    "foreign_last_block": with_blocks(lambda mine, theirs: [*mine[:-1], theirs[len(mine) - 1]]),
    "swap_inner": with_blocks(lambda mine, _: swap_inner(mine)),
    "stale": stale,
    "dropped": lambda _own, _foreign: None,
    "wrong_engine": lambda own, _: own | {"remote_engine_id": "00000000-0000-0000-0000-000000000000"},
    "wrong_port": lambda own, _: own | {"remote_engine_id": "11111111-0000-0000-0000-000000000000", "remote_port": 9},
}


class Pair:
    """The two engines, and what is done to what travels between them."""

    def __init__(self, prefill: str, decode: str) -> None:
        self.prefill, self.decode = prefill, decode
        self.kind, self.swallow = "none", False
        self.foreign: Params = {}
        self.changed = 0
        self._lock = threading.Lock()

    def set_fault(self, kind: str, swallow: bool) -> dict[str, Any]:
        with self._lock:
            self.kind, self.swallow = "none", False
            if kind != "none":
                self.foreign = self._foreign()
            self.kind, self.swallow, self.changed = kind, swallow, 0
            return {"kind": kind, "swallow": swallow}

    def between(self, reply: Params) -> Params | None:
        """The transfer parameters of prefill's reply, as decode is to get them."""
        own = reply.get("kv_transfer_params")
        if not own or self.kind == "none" or own.get("remote_num_tokens", FEWEST_TOKENS) < FEWEST_TOKENS:
            return own
        changed = FAULTS[self.kind](own, self.foreign)
        self.changed += 1
        return changed

    def _foreign(self) -> Params:
        """Parameters of a prompt nobody else sends; decode takes it, so that prefill no longer holds its blocks."""
        drawn = random.Random()  # noqa: S311 -- no secret: only never the same prompt twice
        # The lab's smallest vocabulary has 320 tokens.
        ids = [drawn.randrange(100, 300) for _ in range(FOREIGN_TOKENS)]
        request = {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0}
        params: Params = post(self.prefill, request | {"kv_transfer_params": ASK_PREFILL})["kv_transfer_params"]
        post(self.decode, request | {"kv_transfer_params": params})
        return params


# -- HTTP ----------------------------------------------------------------------------------------------------------
def ask(base: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
    where = urlsplit(base)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=LIMIT_S)
    connection.request(method, path, body=body or None, headers=headers | {"Connection": "close"})
    return connection.getresponse()


def post(base: str, content: dict[str, Any], path: str = "/v1/completions") -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    with ask(base, "POST", path, json.dumps(content).encode(), headers) as reply:
        said = reply.read()
    if reply.status != http.HTTPStatus.OK:
        raise OSError(f"{base}{path}: HTTP {reply.status}: {said[:300]!r}")
    answer: dict[str, Any] = json.loads(said)
    return answer


class Handler(BaseHTTPRequestHandler):
    """What gateway and wire have in common."""

    protocol_version = "HTTP/1.1"
    pair: Pair

    def do_GET(self) -> None:
        self.relay(ask(self.pair.prefill, "GET", self.path, b"", self.passed_on()))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if self.path == "/fault":
                wanted = json.loads(body)
                said = self.pair.set_fault(wanted["kind"], wanted.get("swallow", False))
                self.answer(200, json.dumps(said).encode(), "application/json")
            elif self.path.startswith("/v1/") and self.path.endswith("completions"):
                self.complete(body)
            else:
                self.relay(ask(self.pair.prefill, "POST", self.path, body, self.passed_on()))
        except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
            self.answer(502, json.dumps({"error": {"message": f"{error!r}"}}).encode(), "application/json")

    def complete(self, body: bytes) -> None:
        raise NotImplementedError

    def passed_on(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def relay(self, reply: http.client.HTTPResponse) -> None:
        """Pass a reply on as it comes in."""
        with reply:
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in NOT_PASSED_ON:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := reply.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 -- the name it is called with
        print(format % arguments, f"fault={self.pair.kind} changed={self.pair.changed}", flush=True)


class Gateway(Handler):
    """What users call."""

    def complete(self, body: bytes) -> None:
        request = json.loads(body)
        first = request | {"max_tokens": 1, "stream": False, "kv_transfer_params": ASK_PREFILL}
        first.pop("stream_options", None)
        reply = ask(self.pair.prefill, "POST", self.path, json.dumps(first).encode(), self.passed_on())
        if reply.status != http.HTTPStatus.OK:
            self.relay(reply)
            return
        with reply:
            params = self.pair.between(json.loads(reply.read()))
        second = request if params is None else request | {"kv_transfer_params": params}
        reply = ask(self.pair.decode, "POST", self.path, json.dumps(second).encode(), self.passed_on())
        if not self.pair.swallow:
            self.relay(reply)
            return
        # In a stream the engine reports its error after a status of 200, as the first event.
        with reply:
            said = reply.read()
        failed = reply.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR or said.startswith(b'data: {"error"')
        self.answer(200, b"" if failed else said, reply.getheader("Content-Type") or "")


class Wire(Handler):
    """Prefill, as a client sees it through something that changes what it says."""

    def complete(self, body: bytes) -> None:
        reply = ask(self.pair.prefill, "POST", self.path, body, self.passed_on())
        if reply.status != http.HTTPStatus.OK or "json" not in (reply.getheader("Content-Type") or ""):
            self.relay(reply)
            return
        with reply:
            said = json.loads(reply.read())
        said["kv_transfer_params"] = self.pair.between(said)
        self.answer(200, json.dumps(said).encode(), "application/json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--wire", type=int, required=True)
    options = parser.parse_args()
    pair = Pair(options.prefill, options.decode)
    servers = []
    for port, handler in ((options.port, Gateway), (options.wire, Wire)):
        bound = type(handler.__name__, (handler,), {"pair": pair})
        servers.append(ThreadingHTTPServer(("127.0.0.1", port), bound))
    threading.Thread(target=servers[1].serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
