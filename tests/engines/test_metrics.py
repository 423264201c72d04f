"""Metrics pages as engines really export them (C24-C29, F13, F17)."""

from pathlib import Path

import pytest

from kvgate.domain.counters import Counter, Counters, Reading, difference
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.metrics import UnreadablePageError, parse_counters, parse_info

VLLM = DIALECTS["vllm"]
REAL_PAGE = Path(__file__).parents[1] / "fixtures" / "vllm-0.32-metrics.txt"


def read(*lines: str) -> dict[tuple[str, Counter], float]:
    return parse_counters("\n".join(lines) + "\n", VLLM).table()


def totals(counters: Counters) -> dict[Counter, float]:
    return {reading.counter: reading.value for reading in counters.readings}


def test_a_real_page_of_vllm_0_32_is_read() -> None:
    page = REAL_PAGE.read_text(encoding="utf-8")
    counters = parse_counters(page, VLLM)
    assert {"0"} == {reading.engine for reading in counters.readings}
    seen = totals(counters)
    assert 9430 == seen[Counter.PROMPT_TOKENS]
    assert (3574, 2816, 3040) == (seen[Counter.COMPUTED], seen[Counter.LOCAL], seen[Counter.EXTERNAL])
    assert seen[Counter.PROMPT_TOKENS] == seen[Counter.COMPUTED] + seen[Counter.LOCAL] + seen[Counter.EXTERNAL]
    assert (2816, 3040) == (seen[Counter.LOCAL_HITS], seen[Counter.EXTERNAL_HITS])
    assert 0 == seen[Counter.PREEMPTIONS]
    assert 0 < seen[Counter.LOADED_BYTES]
    assert 0 == seen[Counter.FAILED_LOADS]
    assert counters.started is not None
    assert 1.7e9 < counters.started
    assert "32" == parse_info(page, VLLM.config_sample)["block_size"]


@pytest.mark.parametrize(
    ("moment", "running", "waiting", "prompt_tokens"),
    [("idle", 0, 0, 0), ("busy", 5, 1, 4600), ("after-disconnects", 0, 0, 7800)],
)
def test_real_pages_of_an_engine_at_rest_and_at_work_are_read(
    moment: str, running: int, waiting: int, prompt_tokens: int
) -> None:
    page = REAL_PAGE.with_name(f"vllm-0.32-metrics-{moment}.txt").read_text(encoding="utf-8")
    labels = 'engine="0",model_name="m"'
    assert f"vllm:num_requests_running{{{labels}}} {running}.0\n" in page
    assert f"vllm:num_requests_waiting{{{labels}}} {waiting}.0\n" in page
    seen = totals(parse_counters(page, VLLM))
    assert prompt_tokens == seen[Counter.PROMPT_TOKENS]
    assert (prompt_tokens, 0) == (seen[Counter.COMPUTED], seen[Counter.PREEMPTIONS])


def test_engines_are_kept_apart_and_created_samples_passed_over() -> None:
    """F13."""
    seen = read(
        "# TYPE vllm:prompt_tokens_total counter",
        'vllm:prompt_tokens_total{engine="0"} 10',
        'vllm:prompt_tokens_total{engine="1"} 20',
        'vllm:prompt_tokens_created{engine="0"} 1.7e9',
        'vllm:prompt_tokens_created{engine="1"} 1.7e9',
        'vllm:external_prefix_cache_hits_total{engine="0"} 0',
        'vllm:external_prefix_cache_hits_total{engine="1"} 512',
        'vllm:external_prefix_cache_hits_created{engine="1"} 1.7e9',
    )
    expected = {
        ("0", Counter.PROMPT_TOKENS): 10.0,
        ("1", Counter.PROMPT_TOKENS): 20.0,
        ("0", Counter.EXTERNAL_HITS): 0.0,
        ("1", Counter.EXTERNAL_HITS): 512.0,
    }
    assert expected == seen


def test_only_the_engine_that_worked_moves() -> None:
    """F13: the delta belongs to engine 1."""
    page = 'vllm:prompt_tokens_total{{engine="0"}} 10\nvllm:prompt_tokens_total{{engine="1"}} {}\n'
    delta = difference(parse_counters(page.format(20), VLLM), parse_counters(page.format(532), VLLM))
    assert ("1",) == delta.active_engines()
    assert 512 == delta.total(Counter.PROMPT_TOKENS)
    assert () == delta.fell


@pytest.mark.parametrize(
    "names",
    [
        ("vllm:prefix_cache_hits_total",),
        ("vllm:prefix_cache_hits",),
        ("vllm:gpu_prefix_cache_hits_total",),
        ("vllm:gpu_prefix_cache_hits",),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
        ("vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"),
    ],
)
def test_old_and_new_names_are_one_counter_and_never_added_up(names: tuple[str, ...]) -> None:
    assert {("0", Counter.LOCAL_HITS): 64.0} == read(*(f'{name}{{engine="0"}} 64' for name in names))


def test_samples_that_differ_in_other_labels_are_added_up() -> None:
    """Requests are counted per finish reason."""
    seen = read(
        'vllm:request_success_total{engine="0",finished_reason="stop"} 3',
        'vllm:request_success_total{engine="0",finished_reason="length"} 4',
    )
    assert {("0", Counter.REQUESTS): 7.0} == seen


def test_each_source_is_its_own_counter() -> None:
    page = 'vllm:prompt_tokens_by_source_total{{engine="0",source="{}"}} {}'
    seen = read(
        page.format("local_compute", 1),
        page.format("local_cache_hit", 2),
        page.format("external_kv_transfer", 3),
        page.format("something_new", 4),
    )
    expected = {
        ("0", Counter.COMPUTED): 1.0,
        ("0", Counter.LOCAL): 2.0,
        ("0", Counter.EXTERNAL): 3.0,
    }
    assert expected == seen


def test_without_an_engine_label_there_is_one_engine() -> None:
    assert {("0", Counter.PROMPT_TOKENS): 5.0} == read("vllm:prompt_tokens_total 5")


def test_a_name_that_only_begins_alike_is_another_counter() -> None:
    seen = read("vllm:prompt_tokens_total 5", "vllm:prompt_tokens_cached_total 9", "vllm:prompt_tokens_total_x 9")
    assert {("0", Counter.PROMPT_TOKENS): 5.0} == seen


def test_windows_line_ends_and_a_missing_last_one_are_read() -> None:
    page = 'vllm:prompt_tokens_total{engine="0"} 5\r\nvllm:num_preemptions_total{engine="0"} 1'
    assert 2 == len(parse_counters(page, VLLM).readings)


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x1c"])
def test_other_line_separators_inside_a_label_split_nothing(separator: str) -> None:
    """They are line ends for Python's splitlines, not for Prometheus."""
    page = f'vllm:prompt_tokens_total{{engine="0",model_name="a{separator}b"}} 5'
    assert {("0", Counter.PROMPT_TOKENS): 5.0} == read(page)


def test_an_exemplar_is_not_taken_for_the_value() -> None:
    page = 'vllm:prompt_tokens_total{engine="0"} 5 # {trace_id="x"} 0.5 1.7e9'
    assert {("0", Counter.PROMPT_TOKENS): 5.0} == read(page)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_counter_that_is_no_number_is_not_read(value: str) -> None:
    """It could be neither subtracted nor written down as JSON."""
    assert {("0", Counter.PROMPT_TOKENS): 5.0} == read(
        "vllm:prompt_tokens_total 5", f"vllm:prefix_cache_hits_total {value}"
    )


@pytest.mark.parametrize(
    "page",
    [
        "",
        "\n",
        "<html><body>welcome</body></html>",
        '{"error": "no metrics here"}',
        "# HELP python_info Python\n# TYPE python_info gauge\npython_info 1.0\n",
        'vllm:prompt_tokens_total{engine="0" 5\n',
        "vllm:prompt_tokens_total five\n",
        'vllm:prompt_tokens_total{engine="0"}\n',
        "vllm:prompt_tokens_total{\n",
    ],
    ids=lambda page: repr(page)[:40],
)
def test_a_page_without_readable_counters_is_an_error(page: str) -> None:
    with pytest.raises(UnreadablePageError, match="page"):
        parse_counters(page, VLLM)


def test_info_labels_are_empty_where_the_page_has_none() -> None:
    assert {} == parse_info("python_info 1.0\n", VLLM.config_sample)


# -- between two readings --------------------------------------------------------------------------------------
def at(value: float, started: float | None = None, counter: Counter = Counter.PROMPT_TOKENS) -> Counters:
    return Counters((Reading("0", counter, value),), started)


def test_what_moved_is_after_minus_before() -> None:
    assert 12 == difference(at(30), at(42)).total(Counter.PROMPT_TOKENS)


def test_a_counter_first_seen_afterwards_counts_from_zero() -> None:
    """Label sets appear with the first use."""
    after = Counters((Reading("0", Counter.PROMPT_TOKENS, 42.0), Reading("0", Counter.EXTERNAL, 32.0)))
    assert 32 == difference(at(30), after).total(Counter.EXTERNAL)


def test_a_counter_nobody_exports_is_unknown_and_not_zero() -> None:
    assert None is difference(at(30), at(42)).total(Counter.EXTERNAL)


def test_a_counter_that_fell_is_told() -> None:
    """F17: 40, 17, 40 on an idle server with several API processes."""
    down, up = difference(at(40), at(17)), difference(at(17), at(40))
    assert ("prompt_tokens of engine 0 fell from 40 to 17",) == down.fell
    assert () == up.fell


@pytest.mark.parametrize(("started", "fell"), [(1000.0, ()), (1000.5, ()), (1900.0, ("the server process was",))])
def test_a_new_process_is_told_even_if_no_counter_fell(started: float, fell: tuple[str, ...]) -> None:
    delta = difference(at(0, started=1000.0), at(42, started=started))
    assert len(fell) == len(delta.fell)
    assert all(told.startswith(fell) for told in delta.fell)


def test_a_counter_that_vanished_is_told() -> None:
    """A page of another process, or of a server that was started anew and has not counted yet."""
    before = Counters((Reading("0", Counter.PROMPT_TOKENS, 40.0), Reading("0", Counter.EXTERNAL, 8.0)))
    assert difference(before, at(52)).fell
