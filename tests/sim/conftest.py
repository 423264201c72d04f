"""The self-test's results, worked out beside the other tests: they take half of the time, and mostly wait."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from kvgate.cli.selftest import SelfTest, check
from kvgate.sim.faults import BY_NAME

Checked = Callable[[str], SelfTest]
# As many as are quicker checked here than processes are started.
FEW = 8


@pytest.fixture(scope="session", autouse=True)
def checked(request: pytest.FixtureRequest) -> Iterator[Checked]:
    """The self-test of a fault, by name. Where many are wanted, two processes begin with them at once."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path.name == "test_selftest.py"]
    wanted = [call.params["fault"] for call in calls if call is not None and "fault" in call.params]
    if len(wanted) < FEW:
        yield lambda fault: check(BY_NAME[fault])
        return
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        results = {fault: pool.submit(check, BY_NAME[fault]) for fault in wanted}
        yield lambda fault: results[fault].result()
        pool.shutdown(cancel_futures=True)
