"""Whether models can run on Metal here, a Mac's or the software one."""

import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO


def require_metal() -> None:
    """Skips the test where there is no such device."""
    try:
        _core.Device("metal", sizes=NANO)
    except DeviceError as error:
        pytest.skip(str(error))
