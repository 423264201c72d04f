"""The log an engine writes, in the words of vllm-ascend's store connector: kept, and in a file if one is wanted."""

from pathlib import Path

from kvgate.sim.presets import Preset


class Journal:
    """The last thousand lines, oldest first; with a ``file`` every line is in it, too, as soon as it is said."""

    def __init__(self, file: Path | None = None) -> None:
        self.lines: list[str] = []
        self._file = file
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def say(self, line: str) -> None:
        """Write a line."""
        self.lines = [*self.lines[-999:], line]
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"(EngineCore_DP0 pid=1) INFO 11-30 12:00:00 [pool_scheduler.py:85] {line}\n")


def opened(name: str, folder: str, preset: Preset) -> Journal:
    """The log of an engine that starts; ``folder`` '' is no file."""
    log, groups = Journal(Path(folder) / f"{name}.log" if folder else None), preset.groups()
    log.say(
        f"use_hybrid: {len(groups) > 1}, use_mamba: {preset.recurrent}, num_kv_cache_groups: {len(groups)}, "
        f"hash_block_size: {preset.block}, lcm_block_size: {preset.granule}"
    )
    return log
