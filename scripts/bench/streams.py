"""Many streams at once: how much memory the client needs at its peak, and whether every answer is its own prompt's.

The server, another process, derives each answer from its prompt, and answers when all streams are open. Checked are
that every answer came, whole, with the IDs that follow from its own prompt and with that prompt's echo, and that the
peak of resident memory stays under a bound: 16 MiB and 80 bytes for each prompt token of every open stream. (An ID
takes 36 as a number in a list, 6 as text in the prompt, 6 in the request, 6 in the echo as it comes.) The controls
have to end with 1: ``--control swap`` and ``lose`` spoil the server's answers, ``--control leak`` lets the client keep
twice its bound.
"""

import argparse
import asyncio
import gc
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from streams_server import TOKENS, VOCABULARY, answer_to, server_process

from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm, Probe
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.engine import HttpEngine, RequestSettings, make_client
from kvgate.engines.wire import EncodedPrompt, Timeouts, encode_prompt

MIB = 1 << 20
BOUND_BASE = 16 * MIB
BOUND_PER_TOKEN = 80
TIMEOUTS = Timeouts(connect=120.0, first_token=240.0, first_token_per_1k=0.0, inactivity=240.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run showed; memory in bytes above what the process held before the first prompt."""

    prompts: int
    peak: int
    bound: int
    seconds: float
    wrong: list[str]


def resident(which: str) -> int:
    """Resident memory of this process (Linux): VmRSS now, VmHWM at its peak.

    What getrusage calls the peak may be that of the process this one was started from.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def problem(number: int, seen: Observation, prompt: EncodedPrompt) -> str | None:
    """What is wrong with an answer, if anything is."""
    if not seen.ok:
        return f"stream {number} is lost: {seen.detail}"
    if seen.token_ids != answer_to(prompt.encoded):
        return f"stream {number} holds the answer to another prompt"
    if seen.prompt_echoed is not True:
        return f"stream {number} echoes another prompt"
    told = seen.id_problem()
    return f"stream {number}: {told}" if told else None


async def measure(count: int, length: int, url: str, leak: bool) -> Measured:
    """Send ``count`` prompts at once and check every answer."""
    settings = RequestSettings("m", logprobs=0, stream=True, ignore_eos=True, run_id="streams", timeouts=TIMEOUTS)
    random = np.random.default_rng(1)
    gc.collect()
    before = resident("VmRSS")
    prompts = [encode_prompt(random.integers(0, VOCABULARY, length, dtype=np.int32)) for _ in range(count)]
    held = resident("VmRSS") - before
    kept: list[bytes] = []
    bound = BOUND_BASE + BOUND_PER_TOKEN * count * length
    async with make_client(url, None, TIMEOUTS.connect) as client:
        engine = HttpEngine("a", client, DIALECTS["vllm"], settings)

        async def one(number: int) -> Observation:
            probe = Probe(f"stream.{number}", "", Arm.COLD, 0, "a", None, length, TOKENS, "")
            seen = await engine.complete(probe, prompts[number])
            if leak:
                kept.append(b"x" * (2 * bound // count))
            return seen

        begun = time.monotonic()
        answers = await asyncio.gather(*map(one, range(count)))
        seconds = time.monotonic() - begun
    peak = resident("VmHWM") - before
    told = [problem(number, seen, prompts[number]) for number, seen in enumerate(answers)]
    wrong = [each for each in told if each is not None]
    if peak > bound:
        wrong.append(f"the peak of {peak / MIB:.0f} MiB is above the bound of {bound / MIB:.0f} MiB")
    return Measured(held, peak, bound, seconds, wrong)


def main() -> int:
    """Parse the command line, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="streams at once")
    parser.add_argument("--length", type=int, default=65_536, help="prompt tokens of each")
    parser.add_argument("--control", choices=("swap", "lose", "leak"), help="a fault that has to be found")
    options = parser.parse_args()
    with server_process(options.count, options.control or "none") as url:
        seen = asyncio.run(measure(options.count, options.length, url, options.control == "leak"))
    print(f"{options.count} streams of {options.length} prompt tokens at once: {seen.seconds:.1f} s")
    print(f"  prompts, encoded        {seen.prompts / MIB:8.1f} MiB")
    per_token = seen.peak / (options.count * options.length)
    print(f"  peak, prompts included  {seen.peak / MIB:8.1f} MiB, {per_token:.1f} bytes for each prompt token")
    print(f"  bound                   {seen.bound / MIB:8.1f} MiB")
    print(f"  answers wrong or lost, or a bound broken: {len(seen.wrong)}")
    for line in seen.wrong[:10]:
        print(f"  {line}")
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
