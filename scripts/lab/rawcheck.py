"""Decide, without kvgate, whether a planted fault changes any output of the engine. Standard library only.

    scripts/lab/rawcheck.py PROMPT.json FAULT    on the stack `example`, which must be up

Sends the prompt (a JSON list of token IDs) by plain HTTP: computed, from the local cache, from disk, and from disk
with the fault planted; prints one JSON line: did the token IDs or any logprob change against the local hit.
Exit 2 if the clean answers are not all equal: then nothing can be said.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

BASE = "http://127.0.0.1:8101"
HERE = Path(__file__).parent
OUTPUT_TOKENS = 24


def post(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(BASE + path, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return dict(json.loads(reply.read() or b"{}"))


def answer(prompt: list[int]) -> dict[str, Any]:
    body = {"model": "m", "prompt": prompt, "temperature": 0, "seed": 42, "max_tokens": OUTPUT_TOKENS}
    body |= {"ignore_eos": True, "logprobs": 5, "return_token_ids": True, "return_tokens_as_token_ids": True}
    choice = post("/v1/completions", body)["choices"][0]
    return {"ids": choice["token_ids"], "top": choice["logprobs"]["top_logprobs"]}


def drift(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest |difference| of a shared top-5 logprob up to and including the first differing token."""
    largest = 0.0
    for index, (left, right) in enumerate(zip(one["top"], other["top"], strict=False)):
        shared = left.keys() & right.keys()
        largest = max([largest, *(abs(left[key] - right[key]) for key in shared)])
        if one["ids"][index] != other["ids"][index]:
            break
    return largest


def external(prompt: list[int]) -> dict[str, Any]:
    if post("/reset_prefix_cache").get("success") is not True:
        raise SystemExit("rawcheck: the local cache was not reset")
    return answer(prompt)


def main(prompt_path: Path, fault: str) -> int:
    prompt = json.loads(prompt_path.read_text())
    store = Path(os.environ.get("KVGATE_LAB") or Path.home() / ".cache/kvgate-lab") / "run/example/kv"
    for folder in store.iterdir():
        shutil.rmtree(folder)
    external(prompt)  # computed, and stored on disk
    local = answer(prompt)
    clean = external(prompt)
    if clean["ids"] != local["ids"] or drift(local, clean) != 0.0:
        print(json.dumps({"fault": fault, "error": "the clean external answer is not the local one"}))
        return 2
    subprocess.run([HERE / "plant", "example", fault], check=True, capture_output=True)
    planted = external(prompt)
    seen = {"ids_equal": planted["ids"] == local["ids"], "drift": drift(local, planted)}
    print(json.dumps({"fault": fault, **seen, "changed": not seen["ids_equal"] or seen["drift"] > 0.0}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
