"""Plain English filler sentences of our own, from a small grammar.

The documents of the evaluation items are padded with these.
usage: own_filler.py --out filler.json [--n 4000]
"""

import argparse
import json
import random
from pathlib import Path

SUBJECT = [
    "the clerk",
    "the night shift",
    "our office",
    "the second team",
    "a visitor",
    "the archive",
    "the small printer",
    "the green binder",
    "the front desk",
    "the project group",
    "the main store",
    "the regional board",
    "a careful reader",
    "the old register",
    "the new assistant",
]
VERB = [
    "checks",
    "copies",
    "keeps",
    "moves",
    "reviews",
    "sorts",
    "prints",
    "signs",
    "stores",
    "updates",
    "collects",
    "describes",
    "returns",
    "counts",
    "labels",
]
OBJECT = [
    "the weekly list",
    "every open form",
    "the paper notes",
    "a short summary",
    "the spare keys",
    "the travel plan",
    "each box on the shelf",
    "the meeting minutes",
    "the list of names",
    "a set of maps",
    "the blue folders",
    "the test results",
    "the order book",
    "a copy of the letter",
    "the inventory sheet",
]
WHEN = [
    "before the end of the day",
    "after the morning meeting",
    "in the first week of the month",
    "when the office is closed",
    "as soon as the mail arrives",
    "without any further notice",
    "during the quiet hours",
    "on the day before a holiday",
    "at the request of the board",
    "if nothing else is planned",
    "while the others are away",
    "once the form is complete",
]
WHY = [
    "because the shelves are nearly full",
    "so that nobody has to ask twice",
    "although this is rarely needed",
    "since the rules were changed last year",
    "and leaves a note on the table",
    "but never without a second signature",
    "which makes the next step easier",
    "as the handbook suggests",
    "unless the room is in use",
    "and then locks the cabinet",
]


def sentence(r):
    s, v, o = r.choice(SUBJECT), r.choice(VERB), r.choice(OBJECT)
    form = r.randrange(4)
    if form == 0:
        t = f"{s} {v} {o} {r.choice(WHEN)}"
    elif form == 1:
        t = f"{s} {v} {o} {r.choice(WHY)}"
    elif form == 2:
        t = f"{r.choice(WHEN)}, {s} {v} {o}"
    else:
        t = f"{s} {v} {o} {r.choice(WHEN)}, {r.choice(WHY)}"
    return t[0].upper() + t[1:] + "."


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--n", type=int, default=4000)
    a = ap.parse_args()
    r = random.Random(20)
    made = sorted({sentence(r) for _ in range(2 * a.n)})
    r.shuffle(made)
    Path(a.out).write_text(json.dumps({"train": made[: a.n // 2], "test": made[a.n // 2 : a.n]}, indent=0))
