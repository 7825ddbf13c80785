from __future__ import annotations

import json
from pathlib import Path

import pytest

from lily import Engine
from lily.cache_folder import cached_prompts
from lily.cli import main

SYSTEM = "You answer the questions of a library's visitors in one short sentence, and you never guess."


def request(question: str, system: str = SYSTEM) -> dict[str, object]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which an engine has left prompts."""
    folder = tmp_path_factory.mktemp("cache")
    long_system = SYSTEM * 4
    with Engine("lily-nano", max_context=1024, cache_dir=folder, progress=False) as engine:
        messages = request("Who are you?", long_system)["messages"]
        engine.chat(messages, max_tokens=1, reasoning=False)  # type: ignore[arg-type]
    return folder


def write(path: Path, value: object) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["cache", *arguments]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out or err


def test_stats(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,) = json.loads(run(capsys, "stats", "--cache-dir", str(cache_dir), "--json"))["models"]
    prompts = list(cached_prompts(cache_dir))
    assert model["num_prompts"] == len(prompts) == 2  # the system prompt, and the prompt
    assert model["num_bytes"] == sum(prompt.path.stat().st_size for prompt in prompts)
    assert "2 prompts of up to" in run(capsys, "stats", "--cache-dir", str(cache_dir))


def test_clear_removes_the_caches_own_files_only(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / next(cached_prompts(cache_dir)).path.parent.name
    folder.mkdir()
    (folder / ("00000100-" + "0" * 32 + ".lily")).write_bytes(b"12345")
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "story.lily").write_bytes(b"a saved session")
    assert run(capsys, "clear", "--cache-dir", str(tmp_path)) == "removed 1 files, 5 B\n"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["notes.txt", "story.lily"]
    assert run(capsys, "stats", "--cache-dir", str(tmp_path)) == "the cache is empty\n"


def test_explain_shows_where_two_prompts_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "a.json", request("Who are you?", f"Request 17. {SYSTEM}"))
    second = write(tmp_path / "b.json", request("Who are you?", f"Request 18. {SYSTEM}"))
    text = run(capsys, "explain", first, second)
    assert "in message 0: at most" in text and '"8. You answer' in text and '"7. You answer' in text
    (report,) = json.loads(run(capsys, "explain", first, second, "--json"))["comparisons"]
    assert report["text_before"].endswith("Request 1") and report["common_tokens"] < 20 < report["prompt_tokens"]


def test_explain_lines_of_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        request("Who are you?"),
        request("Who are you?"),
        request("What is a compiler?"),
        {"prompt": "<|im_start|>x"},
    ]
    file = write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, lines)))
    same, other, text = run(capsys, "explain", file).split("\n\n")
    assert "are the same: all but the last token can be reused" in same
    assert "log.jsonl:3" in other and "in message 1" in other
    assert "log.jsonl:4" in text and "part at token 0" in text  # written in text it is no control token


def test_lines_end_at_line_feeds_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What other programs take for the end of a line may stand in a text of JSON."""
    lines = [{"prompt": f"one\u2028two\x85three {word}"} for word in ("red", "blue")]
    content = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert "log.jsonl:2" in run(capsys, "explain", write(tmp_path / "log.jsonl", content))


def test_explain_a_text_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, longer = write(tmp_path / "a.txt", "The archive"), write(tmp_path / "b.txt", "The archive is closed")
    assert "the first goes on where the second ends" in run(capsys, "explain", short, longer)


def test_explain_against_the_cache(cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "c.json", request("What is a compiler?", SYSTEM * 4))
    text = run(capsys, "explain", file, "--cache-dir", str(cache_dir))
    assert ".lily" not in text and "in message 1" in text and "What is a compiler" in text
    damaged = next(cached_prompts(cache_dir)).path.with_name("00000099-" + "0" * 32 + ".lily")
    damaged.write_bytes(b"\xff" * 20)
    try:
        assert main(["cache", "explain", file, "--cache-dir", str(cache_dir)]) == 0
        assert "no state file" in capsys.readouterr().err
    finally:
        damaged.unlink()


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("{", "x.json", "x.json: it is not JSON"),
        ("[1]\n{\n", "x.jsonl", "x.jsonl:2: it is not JSON"),
        ('{"model": "m"}', "x.json", "neither text, nor a list of messages"),
        ('[{"role": "wizard", "content": "x"}]', "x.json", "wizard"),
    ],
)
def test_what_is_no_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, name: str, words: str
) -> None:
    if name == "x.jsonl":
        content = json.dumps(request("q")) + "\n{\n"
    assert words in run(capsys, "explain", write(tmp_path / name, content), write(tmp_path / "y.txt", "y"), code=1)


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to be compared with" in run(capsys, "explain", write(tmp_path / "a.txt", "a"), code=2)
    assert "there is no folder" in run(capsys, "stats", "--cache-dir", str(tmp_path / "no"), code=1)
    assert "required" in run(capsys, "stats", code=2)
    for action in ("stats", "clear"):
        assert "--cache-dir: it is empty" in run(capsys, action, "--cache-dir", "", code=2)
        assert "home folder" in run(capsys, action, "--cache-dir", "~nobody-of-this-name/x", code=2)
