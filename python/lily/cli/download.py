"""`lily download`: fetch a model into the local Hugging Face cache, where `--model org/name` finds it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import NoReturn

from tqdm.auto import tqdm

from lily.download import Download
from lily.memory import available_bytes, format_bytes
from lily.progress import wants_progress

from .options import Verbs, add_log_flag


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "download",
        help="fetch a model from the Hugging Face Hub",
        description="Fetches the files that lily reads, goes on where a broken download stopped, and compares every "
        "file with the hub's digests. HF_HOME chooses the folder, HF_TOKEN is sent if it is set.",
    )
    parser.add_argument("model", help="Hugging Face id, such as mlx-community/Qwen3.6-35B-A3B-4bit")
    parser.add_argument("--revision", help="branch, tag or commit; default: main")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be fetched")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_log_flag(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    download = Download(options.model, options.revision)
    missing = download.missing()
    total, left = sum(file.num_bytes for file in download.files), sum(map(download.bytes_left, missing))
    report: dict[str, object] = {
        "model": download.repo_id,
        "revision": download.revision,
        "commit": download.commit,
        "num_bytes": total,
        "bytes_to_fetch": left,
        "files": [
            {"name": file.name, "num_bytes": file.num_bytes, "bytes_to_fetch": download.bytes_left(file)}
            if file in missing
            else {"name": file.name, "num_bytes": file.num_bytes, "bytes_to_fetch": 0}
            for file in download.files
        ],
    }
    if not options.json:
        _print_plan(download, left, total)
    if not options.dry_run:
        download.check_model()
        with _bar("fetching", left) as bar:
            folder = download.fetch(bar.update)
        with _bar("verifying", total) as bar:
            download.verify(folder, bar.update)
        report["folder"] = str(folder)
        if not options.json:
            print(f"{len(download.files)} files are complete and verified: {folder}")
            print(f"try: lily chat --model {download.repo_id}{_at(options.revision)}")
            if total > available_bytes():
                print(
                    f"note: the weights take {format_bytes(total)}, but this machine has "
                    f"{format_bytes(available_bytes())} available now; see lily doctor --model {download.repo_id}",
                    file=sys.stderr,
                )
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
    return 0


def _print_plan(download: Download, left: int, total: int) -> None:
    missing = download.missing()
    print(f"{download.repo_id} at {download.revision} ({download.commit[:12]})")
    for file in download.files:
        to_fetch = download.bytes_left(file) if file in missing else 0
        state = "here" if not to_fetch else "" if to_fetch == file.num_bytes else f"{format_bytes(to_fetch)} to go"
        print(f"  {file.name:36} {format_bytes(file.num_bytes):>12}  {state}".rstrip())
    print(f"to fetch: {format_bytes(left)} of {format_bytes(total)}", flush=True)


def _bar(description: str, total: int) -> tqdm[NoReturn]:
    return tqdm(
        total=total,
        desc=description,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=not total or not wants_progress(None),
    )


def _at(revision: str | None) -> str:
    return f" --revision {revision}" if revision else ""
