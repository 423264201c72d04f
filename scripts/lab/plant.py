"""Plant a fault in pooled KV, as a hook of the gate or by hand. Runs in the lab's environment.

    scripts/lab/plant mooncake note            before_arm.cold: remember which objects are there
    scripts/lab/plant mooncake FAULT           before_arm.external: change the objects that came since
    scripts/lab/plant example FAULT            before_arm.external: change the files of the newest prompt
    scripts/lab/plant --list

Hooks run before every attempt; a fault is planted at the first attempt only (KVGATE_ATTEMPT is 0 or unset), so that
it is not undone by doing it twice. `remove_all` and `crowd_out` are the exceptions: what is gone stays gone.
Exit 0: planted and read back. Anything else: not planted, with a sentence on standard error.
"""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

LAB = Path(os.environ.get("KVGATE_LAB") or Path.home() / ".cache" / "kvgate-lab")
MASTER = "127.0.0.1:50151"
MASTER_HTTP = "http://127.0.0.1:50152"
ENGINE = "http://127.0.0.1:8101"
BLOCK = 32
LEASE_LIMIT_S = 40.0
SETTLE_S, SETTLE_TRIES = 1.0, 10
GONE = (0, -704)  # removed now; was not there
# Prompts of others that are sent until the pool has evicted what is to go, at most, and the tokens of each.
CROWD, CROWD_TOKENS = 60, 225
# These leave nothing that a second time would undo, and find nothing where an attempt stored nothing.
REPEATED = ("remove_all", "crowd_out")

Edit = Callable[[np.ndarray], np.ndarray]


# -- ExampleConnector: one safetensors file per layer, rows are tokens ------------------------------------------
def zero(block: int) -> Edit:
    def edit(rows: np.ndarray) -> np.ndarray:
        rows[block * BLOCK : (block + 1) * BLOCK] = 0
        return rows

    return edit


def swap(one: int, other: int) -> Edit:
    def edit(rows: np.ndarray) -> np.ndarray:
        first = rows[one * BLOCK : (one + 1) * BLOCK].copy()
        rows[one * BLOCK : (one + 1) * BLOCK] = rows[other * BLOCK : (other + 1) * BLOCK]
        rows[other * BLOCK : (other + 1) * BLOCK] = first
        return rows

    return edit


def flip(count: int, bit: int) -> Edit:
    """Flip one bit of ``count`` float32 values: bit 23 is the lowest exponent bit, bit 0 the lowest of the mantissa."""

    def edit(rows: np.ndarray) -> np.ndarray:
        values = rows.reshape(-1).view(np.uint32)
        places = np.random.default_rng(0).integers(0, values.size, count)
        values[places] ^= np.uint32(1 << bit)
        return rows

    return edit


def flip_in_the_smallest() -> Edit:
    """Flip the lowest bit of the value nearest to zero: the bytes change, and no sum it enters can tell."""

    def edit(rows: np.ndarray) -> np.ndarray:
        values = rows.reshape(-1)
        place = int(np.argmin(np.where(values == 0.0, np.inf, np.abs(values))))
        values.view(np.uint32)[place] ^= np.uint32(1)
        return rows

    return edit


def gauss(scale: float) -> Edit:
    def edit(rows: np.ndarray) -> np.ndarray:
        return rows + (scale * np.random.default_rng(1).standard_normal(rows.shape)).astype(rows.dtype)

    return edit


def through(type_name: str) -> Edit:
    """A round trip through a narrower floating-point type."""

    def edit(rows: np.ndarray) -> np.ndarray:
        import torch

        narrow = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16}[type_name]
        return torch.from_numpy(rows).to(narrow).to(torch.float32).numpy()

    return edit


def duplicate(source: int, target: int) -> Edit:
    def edit(rows: np.ndarray) -> np.ndarray:
        rows[target * BLOCK : (target + 1) * BLOCK] = rows[source * BLOCK : (source + 1) * BLOCK]
        return rows

    return edit


# name -> (edit, layers it is applied to or None for all): the 13 faults of the founding experiment, and one that
# changes bytes without changing any output
EXAMPLE_FAULTS: dict[str, tuple[Edit, tuple[int, ...] | None]] = {
    "zero_block": (zero(2), None),
    "zero_block_one_layer": (zero(2), (15,)),
    "zero_block0_last_layer": (zero(0), (29,)),
    "swap_blocks": (swap(1, 3), None),
    "exponent_bits": (flip(8, 23), None),
    "one_exponent_bit": (flip(1, 23), (7,)),
    "one_mantissa_bit": (flip(1, 10), (7,)),
    "lowest_mantissa_bit": (flip(1, 0), (7,)),
    "smallest_value_bit": (flip_in_the_smallest(), (7,)),
    "gauss": (gauss(1e-3), None),
    "fp8_round_trip": (through("fp8"), None),
    "bf16_round_trip": (through("bf16"), None),
    "roll_one_block": (lambda rows: np.roll(rows, BLOCK, axis=0), None),
    "stale_duplicate": (duplicate(2, 3), None),
}


def newest_folder(root: Path) -> Path:
    folders = sorted((each for each in root.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    if not folders:
        raise SystemExit(f"plant: {root} holds no prompt")
    return folders[-1]


def plant_example(fault: str, folder: Path) -> str:
    """Change a prompt's files and read them back; returns what was done."""
    from safetensors.numpy import load_file, save_file

    edit, layers = EXAMPLE_FAULTS[fault]
    changed = 0
    for file in sorted(folder.glob("*.safetensors")):
        layer = int(file.name.split("layers.")[1].split(".")[0])
        if layers is not None and layer not in layers:
            continue
        before = load_file(file)["kv_cache"]
        after = np.ascontiguousarray(edit(before.copy()))
        save_file({"kv_cache": after}, file)
        if not np.array_equal(load_file(file)["kv_cache"].view(np.uint32), after.view(np.uint32)):
            raise SystemExit(f"plant: {file} does not read back as written")
        changed += int(not np.array_equal(before.view(np.uint32), after.view(np.uint32)))
    if not changed:
        raise SystemExit(f"plant: {fault} changed no file in {folder}")
    return f"{fault}: changed {changed} files in {folder.name}"


# -- Mooncake: one object per block and KV group -----------------------------------------------------------------
def all_keys() -> list[str]:
    with urllib.request.urlopen(f"{MASTER_HTTP}/get_all_keys", timeout=10) as reply:
        return reply.read().decode().split()


def group_of(key: str) -> int:
    return int(key.split("group:")[1].split("@", maxsplit=1)[0]) if "group:" in key else 0


class Store:
    """The pool, from a process of our own."""

    def __init__(self) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", MASTER)
        if code != 0:
            raise SystemExit(f"plant: the pool at {MASTER} cannot be opened (code {code})")

    def get(self, key: str) -> bytes:
        value = bytes(self.store.get(key))
        if not value:
            raise SystemExit(f"plant: {key} cannot be read from the pool")
        return value

    def remove(self, key: str) -> None:
        """Objects are leased for 10 s after a read or write and cannot go before that."""
        deadline = time.monotonic() + LEASE_LIMIT_S
        while (code := self.store.remove(key)) not in GONE:
            if time.monotonic() > deadline:
                raise SystemExit(f"plant: {key} is not removed (code {code})")
            time.sleep(0.25)

    def replace(self, key: str, value: bytes) -> None:
        self.remove(key)
        code = self.store.put(key, value)
        if code != 0:
            raise SystemExit(f"plant: {key} is not put (code {code})")
        if self.get(key) != value:
            raise SystemExit(f"plant: {key} does not read back as written")


def zero_groups(groups: tuple[int, ...] | None) -> Callable[[Store, list[str]], int]:
    """Zero every object of some KV groups, or of all."""

    def plant(store: Store, keys: list[str]) -> int:
        # Reading an object leases it anew, so all are read before the first is replaced: one wait for all leases.
        sizes = {key: len(store.get(key)) for key in keys if groups is None or group_of(key) in groups}
        for key, size in sizes.items():
            store.replace(key, bytes(size))
        return len(sizes)

    return plant


def zero_one(store: Store, keys: list[str]) -> int:
    store.replace(keys[0], bytes(len(store.get(keys[0]))))
    return 1


def flip_one_byte(store: Store, keys: list[str]) -> int:
    value = bytearray(store.get(keys[0]))
    value[1003] ^= 0x40
    store.replace(keys[0], bytes(value))
    return 1


def swap_two(store: Store, keys: list[str]) -> int:
    one, other = store.get(keys[0]), store.get(keys[1])
    store.replace(keys[0], other)
    store.replace(keys[1], one)
    return 2


def remove_all(store: Store, keys: list[str]) -> int:
    for key in keys:
        store.remove(key)
    return len(keys)


def send_another_prompt() -> None:
    """Have the engine compute, and put into its pool, a prompt that nobody sent before."""
    ids = np.random.default_rng().integers(1000, 40000, CROWD_TOKENS).tolist()
    body = json.dumps({"model": "m", "prompt": ids, "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{ENGINE}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()


def crowd_out(_: Store, keys: list[str]) -> int:
    """Let others' prompts come until the pool's master itself has evicted every object; looking leases nothing."""
    for _ in range(CROWD):
        if not set(keys) & set(all_keys()):
            break
        send_another_prompt()
    left = set(keys) & set(settled_keys())
    if left:
        raise SystemExit(f"plant: the pool still holds {len(left)} of {len(keys)} objects")
    # What the others left there is not the next attempt's.
    seen_file().write_text(json.dumps(all_keys()))
    return len(keys)


MOONCAKE_FAULTS: dict[str, Callable[[Store, list[str]], int]] = {
    "zero_one": zero_one,
    "zero_all": zero_groups(None),
    "flip_one_byte": flip_one_byte,
    "swap_two": swap_two,
    "zero_group0": zero_groups((0,)),
    "zero_recurrent": zero_groups((0, 1, 2)),
    "remove_all": remove_all,
    "crowd_out": crowd_out,
}


def settled_keys() -> list[str]:
    """The pool's keys once no more come: puts of the requests before, a sentinel's say, are still under way."""
    keys = all_keys()
    for _ in range(SETTLE_TRIES):
        time.sleep(SETTLE_S)
        before, keys = keys, all_keys()
        if keys == before:
            break
    return keys


def seen_file() -> Path:
    return LAB / "run" / "mooncake-keys-seen.json"


def plant_mooncake(fault: str) -> str:
    if fault == "note":
        seen_file().write_text(json.dumps(settled_keys()))
        return "noted"
    seen = set(json.loads(seen_file().read_text())) if seen_file().exists() else set()
    keys = sorted(key for key in all_keys() if key not in seen)
    if not keys and fault not in REPEATED:
        raise SystemExit("plant: the pool holds no object of this prompt")
    changed = MOONCAKE_FAULTS[fault](Store(), keys)
    return f"{fault}: changed {changed} of {len(keys)} objects"


def main(arguments: list[str]) -> None:
    if arguments == ["--list"]:
        print("mooncake:", *MOONCAKE_FAULTS, "\nexample:", *EXAMPLE_FAULTS)
        return
    if len(arguments) != 2 or arguments[0] not in ("mooncake", "example"):
        raise SystemExit(__doc__)
    where, fault = arguments
    known = EXAMPLE_FAULTS if where == "example" else {**MOONCAKE_FAULTS, "note": None}
    if fault not in known:
        raise SystemExit(f"plant: there is no fault {fault!r} for {where}; known: {', '.join(known)}")
    if int(os.environ.get("KVGATE_ATTEMPT", "0")) > 0 and fault not in REPEATED:
        print("left as it is: planted at the first attempt")
    elif where == "mooncake":
        print(plant_mooncake(fault))
    else:
        print(plant_example(fault, newest_folder(LAB / "run" / "example" / "kv")))


if __name__ == "__main__":
    main(sys.argv[1:])
