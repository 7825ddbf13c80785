"""`lily download` against a server that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lily.download import PARTIAL
from tests.cli.hub_server import COMMIT, HubServer, git_id

REPO = "org/lily-nano-4bit"
WEIGHTS = "model.safetensors"
LARGE = frozenset({WEIGHTS, "tokenizer.json"})


@pytest.fixture
def hub(lily_nano: Path) -> Iterator[HubServer]:
    files = {path.name: path.read_bytes() for path in lily_nano.iterdir() if path.is_file()}
    files["pytorch_model.bin"] = b"not for lily"
    files["onnx/model.safetensors"] = b"not at the top"
    with HubServer(REPO, files, LARGE) as server:
        yield server


@pytest.fixture
def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper() and name[:3] != "HF_"}
    return clean | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_secret"}


def lily(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "lily", *arguments], env=environment, capture_output=True, text=True, timeout=600
    )
    assert "Traceback" not in done.stderr
    return done


def blobs(environment: dict[str, str]) -> Path:
    return Path(environment["HF_HOME"]) / "hub" / "models--org--lily-nano-4bit" / "blobs"


def test_a_model_is_fetched_verified_and_found(hub: HubServer, environment: dict[str, str]) -> None:
    done = lily(environment, "download", REPO)
    assert done.returncode == 0, done.stderr
    assert f"{WEIGHTS}  " in done.stdout and "to fetch: " in done.stdout and "complete and verified" in done.stdout
    fetched = {path.rpartition("/")[2] for method, path, *_ in hub.requests if method == "GET"}
    assert WEIGHTS in fetched and not fetched & {"pytorch_model.bin", "README.md", "eval.jsonl"}
    answer = lily(environment, "generate", "--model", REPO, "--max-context", "256", "--max-tokens", "2", "Once")
    assert answer.returncode == 0, answer.stderr
    hub.requests.clear()
    again = lily(environment, "download", REPO, "--json")
    report = json.loads(again.stdout)
    assert report["bytes_to_fetch"] == 0 and report["commit"] == COMMIT and report["folder"].endswith(COMMIT)
    assert not [path for method, path, *_ in hub.requests if method == "GET" and path.startswith("/content")]


def test_the_token_stays_with_the_hub(hub: HubServer, environment: dict[str, str]) -> None:
    assert lily(environment, "download", REPO).returncode == 0
    tokens = {path.startswith("/content"): token for _, path, _, token in hub.requests}
    assert tokens == {True: None, False: "Bearer hf_secret"}


def test_a_dry_run_fetches_nothing(hub: HubServer, environment: dict[str, str]) -> None:
    done = lily(environment, "download", REPO, "--dry-run", "--json")
    report = json.loads(done.stdout)
    names = {file["name"]: file for file in report["files"]}
    assert names[WEIGHTS]["bytes_to_fetch"] == len(hub.files[WEIGHTS]) and "pytorch_model.bin" not in names
    assert not [path for method, path, *_ in hub.requests if "/resolve/" in path]


def test_a_broken_connection_is_resumed(hub: HubServer, environment: dict[str, str]) -> None:
    hub.cut_after, hub.cuts = 3_000_000, 2
    done = lily(environment, "download", REPO, "--log-level", "info")
    assert done.returncode == 0, done.stderr
    ranges = [wanted for method, path, wanted, _ in hub.requests if path.endswith(WEIGHTS) and wanted]
    assert "bytes=3000000-" in ranges and "going on after 3000000 bytes" in done.stderr


def test_a_new_process_goes_on_where_the_last_one_stopped(hub: HubServer, environment: dict[str, str]) -> None:
    hub.large = frozenset({WEIGHTS})
    (partial,) = [blobs(environment) / (sha256(hub.files[WEIGHTS]) + PARTIAL)]
    partial.parent.mkdir(parents=True)
    partial.write_bytes(hub.files[WEIGHTS][:5_000_000])
    done = lily(environment, "download", REPO)
    assert done.returncode == 0 and "MiB to go" in done.stdout, done.stderr
    wanted = [wanted for method, path, wanted, _ in hub.requests if method == "GET" and path == f"/content/{WEIGHTS}"]
    assert wanted == ["bytes=5000000-"] and not partial.exists()


def test_a_server_without_ranges_sends_all_of_it_again(hub: HubServer, environment: dict[str, str]) -> None:
    hub.cut_after, hub.cuts, hub.ignores_ranges = 3_000_000, 2, True
    assert lily(environment, "download", REPO).returncode == 0


def test_a_connection_that_stays_broken_fails_and_keeps_what_came(hub: HubServer, environment: dict[str, str]) -> None:
    hub.large = frozenset({WEIGHTS})
    partial = blobs(environment) / (sha256(hub.files[WEIGHTS]) + PARTIAL)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(hub.files[WEIGHTS][:1000])
    hub.cut_after, hub.cuts = 0, 1000
    done = lily(environment, "download", REPO)
    assert done.returncode == 1 and "run the same command again, it goes on from there" in done.stderr
    assert partial.read_bytes() == hub.files[WEIGHTS][:1000]


def test_damage_is_found_and_repaired(hub: HubServer, environment: dict[str, str]) -> None:
    assert lily(environment, "download", REPO).returncode == 0
    for name in (WEIGHTS, "config.json"):
        content = hub.files[name]
        blob = blobs(environment) / (sha256(content) if name in LARGE else git_id(content))
        blob.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        done = lily(environment, "download", REPO)
        if name == WEIGHTS:
            assert done.returncode == 1 and f"{name} was damaged and has been removed" in done.stderr
            assert lily(environment, "download", REPO).returncode == 0
        else:
            assert done.returncode == 1 and name in done.stderr


def test_content_that_was_not_announced_is_refused(hub: HubServer, environment: dict[str, str]) -> None:
    partial = blobs(environment) / (sha256(hub.files[WEIGHTS]) + PARTIAL)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * 1000)
    done = lily(environment, "download", REPO)
    assert done.returncode == 1 and "other content than announced" in done.stderr and not partial.exists()
    assert lily(environment, "download", REPO).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["org/other"], "has no model 'org/other', or it is private"),
        ([REPO, "--revision", "v9"], "has no revision 'v9'"),
        (["/models/qwen"], "'/models/qwen' is no Hugging Face id (org/name)"),
        (["lily-nano"], "'lily-nano' comes with lily: there is nothing to download"),
        (["not a name"], "not a name"),
    ],
)
def test_what_is_not_there(environment: dict[str, str], arguments: list[str], words: str) -> None:
    done = lily(environment, "download", *arguments)
    assert done.returncode == 1 and words in done.stderr


def test_gated_models_say_how(hub: HubServer, environment: dict[str, str]) -> None:
    hub.is_gated = True
    done = lily(environment, "download", REPO)
    assert done.returncode == 1 and "is gated: accept its terms" in done.stderr


def test_another_kind_of_model_is_refused_before_its_weights_come(hub: HubServer, environment: dict[str, str]) -> None:
    config = json.loads(hub.files["config.json"])
    hub.files["config.json"] = json.dumps(config | {"model_type": "llama"}).encode()
    done = lily(environment, "download", REPO)
    assert done.returncode == 1 and "llama" in done.stderr
    assert not [path for _, path, *_ in hub.requests if path.startswith("/content")]
    del hub.files["tokenizer.json"], hub.files[WEIGHTS], hub.files["mtp.safetensors"]
    hub.files["model.gguf"] = b"GGUF"
    done = lily(environment, "download", REPO)
    assert done.returncode == 1 and "no tokenizer.json and no *.safetensors, but" in done.stderr


def test_without_a_network_it_says_so_at_once(environment: dict[str, str]) -> None:
    done = lily(environment | {"HF_HUB_OFFLINE": "1"}, "download", REPO)
    assert done.returncode == 1 and "HF_HUB_OFFLINE is set" in done.stderr
    done = lily(environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}, "download", REPO)
    assert done.returncode == 1 and "http://127.0.0.1:9 cannot be reached" in done.stderr


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
