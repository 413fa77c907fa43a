"""What holds for every test."""

import os
import signal
import sys

import pytest


def pytest_configure() -> None:
    """Take interrupts as a terminal gives them: a shell starts what it runs in the background deaf to them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def bytecode_of_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes that tests start compile each module once, also where nothing is to be written beside the source."""
    if sys.dont_write_bytecode:
        own = tmp_path_factory.getbasetemp()
        folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "bytecode"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
