"""What each fault of transfers does to KV on its way from prefill to decode."""

from collections.abc import Callable

import numpy as np

from kvgate.sim.kv import Arrays

Rows = Arrays
# How many transfers go well before they decay.
SOME_TRANSFERS = 10


def _reordered(rows: Rows, _: Rows, block: int, number: int) -> None:  # noqa: ARG001 - one signature for all
    whole = len(rows["keys"]) // block * block
    for name in ("keys", "values"):
        kept = rows[name][:whole].reshape(-1, block, rows[name].shape[1])[::-1].copy()
        rows[name][:whole] = kept.reshape(whole, rows[name].shape[1])
        rows[name][whole:] = rows[name][: len(rows[name]) - whole]


def _foreign_tail(rows: Rows, foreign: Rows, block: int, number: int) -> None:  # noqa: ARG001
    count = min(block, len(rows["keys"]), len(foreign.get("keys", ())))
    for name in ("keys", "values"):
        if count:
            rows[name][-count:] = foreign[name][-count:]


def _relayout(rows: Rows, foreign: Rows, block: int, number: int) -> None:  # noqa: ARG001
    half = rows["values"].shape[1] // 2
    rows["values"][:] = np.roll(rows["values"], half, axis=1)


def _garbled(rows: Rows, foreign: Rows, block: int, number: int) -> None:  # noqa: ARG001
    random = np.random.default_rng(number)
    rows["values"][len(rows["values"]) // 2 :] = random.normal(
        0.0, 0.125, rows["values"][len(rows["values"]) // 2 :].shape
    )


def _subtle(rows: Rows, foreign: Rows, block: int, number: int) -> None:  # noqa: ARG001
    rows["values"][:block] *= np.float32(1.5)


def _last_token(rows: Rows, foreign: Rows, block: int, number: int) -> None:  # noqa: ARG001
    # The prompt's last token was taken for a draft's, and its rows are another's.
    for name in ("keys", "values"):
        rows[name][-1] = rows[name][0]


def _extra_block(rows: Rows, foreign: Rows, block: int, number: int) -> None:  # noqa: ARG001
    """The prefiller has a block more than the decoder counts where the prompt ends with one."""
    if len(rows["values"]) % block == 0:
        rows["values"][:] = np.roll(rows["values"], block, axis=0)


def _after_some(rows: Rows, foreign: Rows, block: int, number: int) -> None:
    if number >= SOME_TRANSFERS:
        _reordered(rows, foreign, block, number)


ON_TRANSFER: dict[str, Callable[[Rows, Rows, int, int], None]] = {
    "transfer_reversed": _reordered,
    "transfer_foreign_tail": _foreign_tail,
    "transfer_relayout": _relayout,
    "lease_expired": _garbled,
    "transfer_subtle": _subtle,
    "transfer_unsaid": _subtle,
    "transfer_last_token": _last_token,
    "transfer_extra_block": _extra_block,
    "transfer_decays": _after_some,
    "decode_hides_transfer": _subtle,
}
