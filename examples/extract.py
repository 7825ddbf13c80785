"""A folder of documents to JSON: one line per file, always valid, with null for what a document does not say.

python examples/extract.py [FOLDER] [--model MODEL]

The instructions come first and are the same in every prompt, so the prefix cache computes them once. A document that
fails (too long, not text) is reported on stderr and does not end the run.
"""

import argparse
import json
import sys
from pathlib import Path

from lily import Engine, LilyError
from lily.answer import ResponseFormat

FIELDS = ("owner", "priority", "status")
SCHEMA = {
    "type": "object",
    "properties": {field: {"type": ["string", "null"]} for field in FIELDS},
    "required": list(FIELDS),
    "additionalProperties": False,
}
FORMAT: ResponseFormat = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": SCHEMA}}
PROMPT = """\
Answer only from the document. Reply in JSON.

Document:
{document}

Question: Give {fields} of ticket {name}."""


def extract(engine: Engine, name: str, document: str) -> dict[str, str | None]:
    """The fields of one ticket."""
    prompt = PROMPT.format(document=document.strip(), fields=", ".join(FIELDS), name=name)
    reply = engine.chat(
        [{"role": "user", "content": prompt}], response_format=FORMAT, reasoning=False, temperature=0, max_tokens=200
    )
    if reply.finish_reason == "length":
        raise ValueError("the answer was cut at max_tokens")
    fields: dict[str, str | None] = json.loads(reply.content)
    return fields


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "documents")
    parser.add_argument("--model", default="lily-nano")
    options = parser.parse_args()

    failures = 0
    with Engine(options.model, max_context=4096) as engine:
        for path in sorted(options.folder.glob("*.txt")):
            try:
                fields = extract(engine, path.stem, path.read_text(encoding="utf-8"))
            except (LilyError, ValueError, OSError) as error:
                failures += 1
                print(f"{path.name}: {error}", file=sys.stderr)
                continue
            print(json.dumps({"file": path.name, **fields}, ensure_ascii=False), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
