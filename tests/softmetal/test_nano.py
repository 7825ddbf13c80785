"""lily-nano over software Metal, from the prompt to the answer: the shaders, the host and the model together."""

import pytest

from lily import Engine
from tests.softmetal import control

if not control.is_present():
    pytest.skip("this build has no software Metal", allow_module_level=True)

QUESTION = [{"role": "user", "content": "What is a compiler?"}]


def answer(device: str) -> str:
    with Engine("lily-nano", device=device, max_context=512) as engine:
        return engine.chat(QUESTION, reasoning=False, temperature=0, max_tokens=24).content


@pytest.mark.parametrize(("has_metal4", "reverse"), [(True, False), (False, True)], ids=["metal4", "metal3-reverse"])
def test_the_answer_is_that_of_the_cpu(has_metal4, reverse):
    control.configure(has_metal4=has_metal4, reverse=reverse)
    control.take_reports()
    try:
        assert answer("metal") == answer("cpu") != ""
    finally:
        control.configure()
    assert control.take_reports() == []
