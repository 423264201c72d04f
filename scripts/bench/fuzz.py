"""Mutated real replies and metrics pages through kvgate's readers, without sockets.

Every input must end as an observation or as counters, within time, and keep what is promised of them: an observation
can be written to the history and read back as it was, its detail is one printable line, an OK answer has a finish
reason, token IDs are numbers in range; and wherever a reply is cut into pieces, the same is read. Prints counts, the
rate and every failure, whose input is saved; exit 1 if there was one. ``--control`` breaks the reader for one input
in a thousand, by a crash and by a hang, and has to end with 1, or this could not fail.
"""

import argparse
import asyncio
import codecs
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import httpx
from fuzz_inputs import SENT, Spoiler
from pydantic import TypeAdapter

from kvgate.domain.history import ProbeAnswered
from kvgate.domain.observation import Observation, Outcome
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.metrics import CounterReader, UnreadablePageError, parse_info
from kvgate.engines.wire import EncodedPrompt, Timeouts, Wire, _Exchange

# Reading takes a fraction of a millisecond.
HANG_S = 5.0
MOST = 16
# One input in so many goes through the whole HTTP client.
WHOLE_CLIENT = 100
TIMEOUTS = Timeouts(connect=5.0, first_token=600.0, first_token_per_1k=0.0, inactivity=600.0)
RECORD: TypeAdapter[ProbeAnswered] = TypeAdapter(ProbeAnswered)
PLAIN, EVENTS = "application/json", "text/event-stream"


class HangError(Exception):
    """An input was not read in time."""


class BrokenPromiseError(Exception):
    """Something that is promised of what was read does not hold."""


class Pieces(httpx.AsyncByteStream):
    """A reply's body in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class Reply:
    """As much of a response as the reader asks for; building a real one takes longer than reading it."""

    def __init__(self, pieces: list[bytes], kind: str, status: int) -> None:
        self.headers = {"content-type": kind}
        self.status_code = status
        self.is_success = status == 200
        self.encoding = ""
        self._pieces = pieces

    async def aread(self) -> bytes:
        """All of it."""
        return b"".join(self._pieces)

    @property
    def text(self) -> str:
        """All of it, decoded."""
        return b"".join(self._pieces).decode("utf-8", "replace")

    async def aiter_text(self) -> AsyncIterator[str]:
        """Piece by piece."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for piece in self._pieces:
            if text := decoder.decode(piece):
                yield text
        if rest := decoder.decode(b"", True):
            yield rest


class Replying(httpx.AsyncBaseTransport):
    """Answers every request with what is laid out for it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.kind = EVENTS
        self.status = 200

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The reply laid out."""
        headers = {"content-type": self.kind}
        return httpx.Response(self.status, headers=headers, stream=Pieces(self.pieces), request=request)


@dataclass
class Tally:
    """What came of the inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Fuzzer:
    """Feeds inputs to the readers and keeps failures in ``folder``."""

    def __init__(self, seed: int, folder: Path, control: bool = False) -> None:
        self.tally = Tally()
        self._spoiler = Spoiler(seed)
        self._seed = seed
        self._folder = folder
        self._control = control
        self._transport = Replying()
        self._client = httpx.AsyncClient(base_url="http://a", transport=self._transport)
        self._prompt = EncodedPrompt(SENT, b"[]")
        self._reader = CounterReader(DIALECTS["vllm"])

    async def run(self, first: int, count: int) -> None:
        """Read ``count`` inputs."""
        for number in range(first, first + count):
            content = self._spoiler.content()
            kind = self._spoiler.kind
            # Seconds of this process's own CPU: a busy machine is no hang.
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            try:
                if self._control:
                    self._spoil_reader(number)
                self.tally.outcomes[f"{kind}: {await self._read(kind, content, number)}"] += 1
            except Exception as error:  # noqa: BLE001 - whatever is raised is what the fuzzer looks for
                self._keep(kind, content, number, error)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            # Lets the event loop finish what readers leave to it, as waiting for bytes does.
            await asyncio.sleep(0)

    def _spoil_reader(self, number: int) -> None:
        if number % 1000 == 7:
            raise KeyError("control: a crash")
        while number == 8:
            pass

    async def _read(self, kind: str, content: bytes, number: int) -> str:
        if kind == "page":
            return self._read_page(content, number)
        seen = await self._answer([content], kind, number)
        self._check(seen)
        if number % 4 == 0:
            parts = await self._answer(self._spoiler.pieces(content), kind, number)
            if parts != seen:
                raise BrokenPromiseError(f"cut into pieces it reads {parts}, whole {seen}")
        return seen.outcome.value

    def _read_page(self, content: bytes, number: int) -> str:
        text = content.decode("utf-8", "replace")
        try:
            if number % 8 == 0:
                parse_info(text, "vllm:cache_config_info")
            counters = self._reader.read(text)
        except UnreadablePageError as error:
            if "\n" in str(error):
                raise BrokenPromiseError("the complaint is more than one line") from None
            return "unreadable"
        if not all(abs(reading.value) < float("inf") for reading in counters.readings):
            raise BrokenPromiseError("a counter is no number")
        return "counters"

    async def _answer(self, pieces: list[bytes], kind: str, number: int) -> Observation:
        media = EVENTS if kind == "stream" and number % 8 else PLAIN
        status = 500 if number % 64 == 1 else 200
        if number % WHOLE_CLIENT == 0:
            self._transport.pieces, self._transport.kind, self._transport.status = pieces, media, status
            # A wire remembers how its endpoint ends streams, so each input has its own.
            wire = Wire(self._client, "/v1/completions", TIMEOUTS)
            seen = await wire.complete(b"{}", self._prompt, "id", kind == "stream", MOST)
        else:
            exchange = _Exchange(TIMEOUTS, self._prompt, kind == "stream", MOST, str)
            seen = await exchange.read(Reply(pieces, media, status))
        return replace(seen, timing=None)

    def _check(self, seen: Observation) -> None:
        line = RECORD.dump_json(ProbeAnswered(0.0, "p", seen))
        if RECORD.validate_json(line).observation != seen:
            raise BrokenPromiseError("what is read back from the history is something else")
        if not seen.detail.isprintable():
            raise BrokenPromiseError("the detail is no printable line")
        if seen.outcome is Outcome.OK and not seen.finish_reason:
            raise BrokenPromiseError("an answer without a finish reason counts as whole")
        if seen.token_ids and not all(type(each) is int and 0 <= each < 1 << 31 for each in seen.token_ids):
            raise BrokenPromiseError("a token ID is none")
        if seen.outcome is Outcome.OK and seen.token_ids is not None and len(seen.token_ids) > 2 * MOST + 128:
            raise BrokenPromiseError("the answer is longer than anybody asked for")
        seen.id_problem()
        seen.logprob_problem()

    def _keep(self, kind: str, content: bytes, number: int, error: Exception) -> None:
        if len(self.tally.failures) < 20:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._folder / f"{kind}-{self._seed}-{number}.bin"
            file.write_bytes(content)
            print(f"input {number} ({kind}): {type(error).__name__}: {str(error)[:300]}\n  saved as {file}", flush=True)
        self.tally.failures.append(f"{type(error).__name__}: {error}")


def hung(_signum: int, _frame: FrameType | None) -> None:
    """The watchdog."""
    raise HangError(f"not read within {HANG_S:g} s")


async def fuzz(count: int, seed: int, folder: Path, control: bool = False, every_s: float = 60.0) -> Tally:
    """Read ``count`` inputs, with a line now and then."""
    fuzzer = Fuzzer(seed, folder, control)
    before = signal.signal(signal.SIGPROF, hung)
    begun = told = time.monotonic()
    try:
        done = 0
        while done < count:
            share = min(1000, count - done)
            await fuzzer.run(done, share)
            done += share
            if time.monotonic() - told > every_s:
                told = time.monotonic()
                print(
                    f"{done} inputs, {done / (told - begun):.0f}/s, {len(fuzzer.tally.failures)} failures", flush=True
                )
    finally:
        signal.signal(signal.SIGPROF, before)
    return fuzzer.tally


def main() -> int:
    """Parse the command line, fuzz, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, default=Path("build/fuzz"), help="folder for inputs that fail")
    parser.add_argument("--control", action="store_true", help="break the reader; has to end with 1")
    options = parser.parse_args()
    begun, used = time.monotonic(), time.process_time()
    tally = asyncio.run(fuzz(options.count, options.seed, options.save, options.control))
    wall, used = time.monotonic() - begun, time.process_time() - used
    rate = options.count / used
    print(
        f"{options.count} inputs from seed {options.seed}: {wall:.0f} s, {used:.0f} s of CPU, {rate:.0f} per CPU second"
    )
    for name, number in sorted(tally.outcomes.items()):
        print(f"  {name:24} {number:9}")
    print(f"  {'crashed, hung or broken':24} {len(tally.failures):9}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
