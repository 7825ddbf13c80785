import pytest

from tools.make_checkpoint import make


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Function of (family, size) that makes each checkpoint once."""
    made = {}

    def get(family, size="nano"):
        if (family, size) not in made:
            made[family, size] = make(tmp_path_factory.mktemp(f"{family}-{size}"), family, "mlx", size)
        return made[family, size]

    return get
