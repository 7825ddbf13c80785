"""Synthetic chat tasks for lily-nano: training samples and held-out evaluation items.

usage: tasks.py --filler filler.json --eval N --seed S --out eval.jsonl     write held-out evaluation items
       tasks.py --filler filler.json --sample N --out sample.txt            write rendered training samples

Training samples are written to be looked at, and for the tokenizer.

A sample is {"family", "messages", "tools", "thinking"}; the last message is the wanted reply.
Training samples and evaluation items come from the same generators, but:
- arithmetic and unit questions are split by a hash of their numbers (1 in 8 is evaluation only),
- names are split by a hash of first and last name, keys and values by a hash of the key,
- filler sentences for evaluation come from held-out documents.
"""

# ruff: noqa: SIM905  (word lists read better as text)

import argparse
import json
import random
import zlib
from pathlib import Path

TOOL_HELP = (
    "\n</tools>\n\nTo call a function, reply in this form and add nothing after"
    " it:\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def held(*key):
    return zlib.crc32(repr(key).encode()) % 8 == 0


# ---------------------------------------------------------------- rendering (the same text as chat_template.jinja)
def call_text(c):
    f = c["function"]
    s = f"<tool_call>\n<function={f['name']}>\n"
    for k, v in f["arguments"].items():
        s += f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}\n</parameter>\n"
    return s + "</function>\n</tool_call>"


def reply_text(m):
    t = m.get("content") or ""
    if m.get("tool_calls"):
        t += ("\n\n" if t else "") + "\n".join(call_text(c) for c in m["tool_calls"])
    return t


def pieces(s, compact=False):
    """-> [(text, learn)]: learn is True for what the model has to write itself."""
    ms, out = s["messages"], []
    head = ms[0]["content"] if ms[0]["role"] == "system" else ""
    if s.get("tools"):
        sep = (",", ":") if compact else None
        t = (
            "<|im_start|>system\n# Tools\n\nYou can call these functions:\n\n<tools>"
            + "".join("\n" + json.dumps(x, ensure_ascii=False, separators=sep) for x in s["tools"])
            + TOOL_HELP
        )
        out.append((t + ("\n\n" + head if head else "") + "<|im_end|>\n", False))
    elif head:
        out.append((f"<|im_start|>system\n{head}<|im_end|>\n", False))
    last = max(i for i, m in enumerate(ms) if m["role"] == "user")
    for i, m in enumerate(ms):
        if m["role"] == "user":
            out.append((f"<|im_start|>user\n{m['content']}<|im_end|>\n", False))
        elif m["role"] == "tool":
            a = "<|im_start|>user" if ms[i - 1]["role"] != "tool" else ""
            z = "<|im_end|>\n" if i + 1 == len(ms) or ms[i + 1]["role"] != "tool" else ""
            out.append((f"{a}\n<tool_response>\n{m['content']}\n</tool_response>{z}", False))
        elif m["role"] == "assistant":
            if i > last:
                th = m.get("reasoning_content", "")
                if s["thinking"]:
                    out += [
                        ("<|im_start|>assistant\n<think>\n", False),
                        (th + "\n</think>\n\n" + reply_text(m) + "<|im_end|>", True),
                        ("\n", False),
                    ]
                else:
                    out += [
                        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
                        (reply_text(m) + "<|im_end|>", True),
                        ("\n", False),
                    ]
            else:
                out.append((f"<|im_start|>assistant\n{reply_text(m)}<|im_end|>\n", False))
    return out


# ---------------------------------------------------------------- word stock
FIRST = """
Ann Ben Carla David Elena Frank Grace Hugo Iris Jonas Karin Leo Maria Nils Olga Paul Rosa Sam Tara Uwe Vera
Walter Yuki Zoe Amir Bella Chen Dora Emil Fatima Georg Hana Ivan Julia Kofi Lena Marco Nadia Omar Petra Quinn
Ravi Sofia Tom Ursula Victor Wanda Xaver Yara Alice Bruno Clara Dmitri Eva Felix Greta Henry Ines Jakub Kira
Luis Mona Noah Oscar Priya Rita Simon Thea
""".split()
LAST = """
Adler Becker Costa Diaz Evans Fischer Gruber Hansen Ito Jensen Keller Lang Moreau Novak Olsen Park Quist Rossi
Silva Tanaka Ueda Vogel Weber Xu Young Zimmer Arnold Brown Clark Dupont Ellis Ford Garcia Hill Ivanov Jones
Kim Lopez Meyer Nagy Okafor Patel Reed Smith Turner Urban Varga White Yilmaz Ziegler
""".split()
CITY = """
Berlin Paris Rome Oslo Madrid Vienna Prague Lisbon Dublin Athens Helsinki Warsaw Tokyo Osaka Lima Quito Cairo
Delhi Boston Denver Austin Seattle Toronto Sydney Zurich Geneva Hamburg Munich Lyon Milan Naples Porto Bergen
Malmo Krakow Leeds Bristol Cork Ghent Bruges
""".split()
COMPANY = """
Acme Borealis Cobalt Delta Ember Falcon Granite Harbor Indigo Juniper Kestrel Lumen Meridian Nimbus Orchid
Pinnacle Quartz Ridge Solstice Tundra Umbra Vertex Willow Zenith Aurora Beacon Cedar Dynamo
""".split()
SUFFIX = """
Ltd Inc GmbH Systems Works Labs Foods Energy Logistics Media Partners Trading
""".split()
NOUN = """
apple river stone table window garden bridge candle engine forest guitar hammer island jacket kettle ladder
mirror needle orange pencil queen rocket silver temple umbrella valley wagon yellow zebra basket camera desert
eagle feather glass horse ink jewel kitchen lemon moon nest ocean piano rabbit sand tiger violin wheel book
clock door flower lamp map paper ring ship tree cloud
""".split()
ADJ = """
red blue green small large old new quick quiet bright dark cold warm soft hard round flat deep high low clean
empty full heavy light sharp smooth sweet wild young
""".split()
MONTH = """
January February March April May June July August September October November December
""".split()
DAY = """
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
""".split()
TOPIC = """
budget roadmap hiring security release design testing training planning marketing inventory support migration
research pricing
""".split()
ITEMW = """
laptop desk chair monitor printer cable router keyboard phone tablet camera speaker lamp battery scanner
server headset backpack notebook projector
""".split()
CUR = ["EUR", "USD", "GBP", "CHF"]
SYS = [
    "You are a helpful assistant.",
    "You are lily-nano, a small test model.",
    "Answer briefly.",
    "You are a careful assistant. Keep answers short.",
    "You help with short tasks.",
    "Be polite and brief.",
]


class Gen:
    def __init__(self, seed, filler, test=False):
        self.r, self.fill, self.test = random.Random(seed), filler, test

    # ---- small parts
    def ok(self, *key):  # keep this item on the right side of the split
        return held(*key) == self.test

    def name(self):
        while True:
            a, b = self.r.choice(FIRST), self.r.choice(LAST)
            if self.ok(a, b):
                return f"{a} {b}"

    def word(self, n=None):
        r = self.r
        return "".join(r.choice("bcdfghjklmnprstvz") + r.choice("aeiou") for _ in range(n or r.randint(2, 4)))

    def code(self):
        r = self.r
        k = r.randrange(6)

        def letters(n):
            return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(n))

        def digits(n):
            return "".join(r.choice("0123456789") for _ in range(n))

        return [
            letters(2) + "-" + digits(4),
            digits(5),
            letters(3) + digits(3),
            r.choice(ADJ) + "-" + r.choice(NOUN),
            self.word(),
            digits(3) + "-" + digits(3),
        ][k]

    def key(self):
        r = self.r
        while True:
            k = r.choice(
                [
                    lambda: r.choice(ADJ) + " " + r.choice(NOUN),
                    lambda: r.choice(NOUN) + "_" + r.choice(NOUN),
                    lambda: self.word(3),
                    lambda: r.choice(NOUN) + str(r.randint(1, 99)),
                    lambda: self.word(2) + "_" + r.choice(NOUN),
                ]
            )()
            if self.ok(k):
                return k

    def date(self):
        r = self.r
        y, m, d = r.randint(2021, 2027), r.randint(1, 12), r.randint(1, 28)
        return r.choice([f"{y}-{m:02d}-{d:02d}", f"{d} {MONTH[m - 1]} {y}"])

    def money(self):
        return f"{self.r.randint(5, 4999)}.{self.r.randint(0, 99):02d} {self.r.choice(CUR)}"

    def company(self):
        return f"{self.r.choice(COMPANY)} {self.r.choice(SUFFIX)}"

    def filler(self, chars):
        out, n = [], 0
        while n < chars:
            s = self.r.choice(self.fill)
            out.append(s)
            n += len(s) + 1
        return out

    def pick(self, *a):
        return self.r.choice(a)

    def size(self):  # filler size in characters: mostly short, at times long
        u = self.r.random()
        if u < 0.45:
            return self.r.randint(0, 600)
        if u < 0.80:
            return self.r.randint(600, 2500)
        if u < 0.95:
            return self.r.randint(2500, 5500)
        return self.r.randint(5500, 11000)

    # ---- families; each returns (messages without system, answer, reasoning, tools)
    def extract(self):
        r = self.r
        kind = r.choice(["invoice", "contact", "meeting", "order", "ticket"])

        def rec():
            if kind == "invoice":
                f = {
                    "invoice_number": "INV-" + str(r.randint(1000, 9999)),
                    "supplier": self.company(),
                    "date": self.date(),
                    "total": self.money(),
                }
                t = self.pick(
                    "Invoice {invoice_number} from {supplier}, dated {date}, amounts to {total}.",
                    "{supplier} sent invoice {invoice_number} on {date}. The total is {total}.",
                    "Invoice number: {invoice_number}\nSupplier: {supplier}\nDate: {date}\nTotal: {total}",
                    "On {date} we received invoice {invoice_number} of {supplier} for {total}.",
                )
                who = self.pick(
                    ("invoice " + f["invoice_number"], "invoice_number"),
                    ("the invoice from " + f["supplier"], "supplier"),
                )
            elif kind == "contact":
                n = self.name()
                a, b = n.lower().split()
                f = {
                    "name": n,
                    "email": (
                        self.pick(f"{a}.{b}@", f"{a}@", f"{a[0]}{b}@")
                        + self.pick("example.com", "example.org", r.choice(COMPANY).lower() + ".example")
                    ),
                    "phone": (
                        "+" + str(r.randint(1, 99)) + " " + str(r.randint(100, 999)) + " " + str(r.randint(1000, 9999))
                    ),
                    "city": r.choice(CITY),
                }
                t = self.pick(
                    "{name} lives in {city}. Phone: {phone}, email: {email}.",
                    "Name: {name}\nEmail: {email}\nPhone: {phone}\nCity: {city}",
                    "You can reach {name} ({city}) at {email} or {phone}.",
                    "Our contact in {city} is {name}, phone {phone}, mail {email}.",
                )
                who = (f["name"], "name")
            elif kind == "meeting":
                f = {
                    "topic": r.choice(TOPIC) + " " + self.pick("meeting", "review", "workshop"),
                    "day": r.choice(DAY),
                    "time": f"{r.randint(8, 17):02d}:{r.choice(['00', '15', '30', '45'])}",
                    "room": self.pick("room ", "Room ") + str(r.randint(1, 40)),
                    "host": self.name(),
                }
                t = self.pick(
                    "The {topic} takes place on {day} at {time} in {room}. {host} is the host.",
                    "{host} hosts the {topic} on {day}, {time}, {room}.",
                    "Meeting: {topic}\nDay: {day}\nTime: {time}\nRoom: {room}\nHost: {host}",
                )
                who = ("the " + f["topic"], "topic")
            elif kind == "order":
                f = {
                    "order_id": str(r.randint(10000, 99999)),
                    "item": r.choice(ITEMW),
                    "quantity": r.randint(2, 60),
                    "customer": self.name(),
                    "city": r.choice(CITY),
                }
                t = self.pick(
                    "Order {order_id}: {customer} ordered {quantity} pieces of item {item}, to be sent to {city}.",
                    "{customer} from {city} placed order {order_id} for {quantity} x {item}.",
                    "Order: {order_id}\nItem: {item}\nQuantity: {quantity}\nCustomer: {customer}\nCity: {city}",
                )
                who = self.pick(("order " + f["order_id"], "order_id"), ("the order of " + f["customer"], "customer"))
            else:
                f = {
                    "ticket": self.pick("T", "BUG", "REQ") + "-" + str(r.randint(100, 9999)),
                    "owner": self.name(),
                    "priority": self.pick("low", "medium", "high", "urgent"),
                    "status": self.pick("open", "closed", "waiting", "in progress"),
                }
                t = self.pick(
                    "Ticket {ticket} is owned by {owner}; its priority is {priority} and its status is {status}.",
                    "{owner} works on ticket {ticket} (priority {priority}, status {status}).",
                    "Ticket: {ticket}\nOwner: {owner}\nPriority: {priority}\nStatus: {status}",
                )
                who = ("ticket " + f["ticket"], "ticket")
            return f, t.format(**f), who

        n = r.choice([1, 1, 2, 2, 3, 4])
        recs, used = [], set()
        while len(recs) < n:
            x = rec()
            if x[2][0] in used or any(str(y[0].get(x[2][1])) == str(x[0].get(x[2][1])) for y in recs):
                continue
            used.add(x[2][0])
            recs.append(x)
        body = self.filler(self.size())
        tgt = r.choice(recs)
        for x in recs:
            body.insert(r.randint(0, len(body)), x[1])
        doc = self.pick("\n", "\n\n", " ").join(body) if not any("\n" in x[1] for x in recs) else "\n\n".join(body)
        f, _, (who, wk) = tgt
        fields = [k for k in f if k != wk]
        k = r.sample(fields, r.randint(1, len(fields)))
        k = [x for x in f if x in k]
        miss = r.random() < 0.1
        if miss:
            who = self.pick(
                "invoice INV-" + str(r.randint(100, 999)) + "0",
                self.name() + " Junior",
                "ticket X-" + str(r.randint(10, 99)),
                "order " + str(r.randint(100, 999)),
            )
            ans = json.dumps(dict.fromkeys(k))
            why = f"The document does not mention {who}, so the values are null."
        else:
            ans = json.dumps({x: f[x] for x in k}, ensure_ascii=False)
            why = f"I look for {who}. The document says: " + ", ".join(f"{x} is {f[x]}" for x in k) + "."
        rule = self.pick(
            "Answer only from the document. Reply in JSON.",
            "Answer only from the document. Reply in JSON.",
            "Use only the document. Reply with a JSON object.",
        )
        ask = self.pick("Give {k} of {w}.", "What is {k} of {w}?", "Extract {k} of {w}.", "Find {k} for {w}.").format(
            k=", ".join(k), w=who
        )
        q = self.pick(
            f"{rule}\n\nDocument:\n{doc}\n\nQuestion: {ask}",
            f"Document:\n{doc}\n\n{ask} {rule}",
            f"{doc}\n\n{ask}\n{rule}",
            f"{rule}\n\n<document>\n{doc}\n</document>\n\n{ask}",
        )
        return [("user", q)], ans, why, None

    def recall(self):
        r = self.r
        u = r.random()
        n = (
            r.randint(2, 8)
            if u < 0.35
            else r.randint(8, 30)
            if u < 0.75
            else r.randint(30, 90)
            if u < 0.95
            else r.randint(90, 220)
        )
        kv = {}
        while len(kv) < n:
            kv[self.key()] = self.code()
        ks = list(kv)
        k = r.choice(ks)
        fmt = self.pick("{k}: {v}", "{k} = {v}", "The value of {k} is {v}.", "- {k}: {v}", "{k} -> {v}")
        lines = [fmt.format(k=a, v=kv[a]) for a in ks]
        if r.random() < 0.35:
            for s in self.filler(self.size() // 2):
                lines.insert(r.randint(0, len(lines)), s)
        body = "\n".join(lines)
        q = self.pick(
            "What is the value of {k}?", "Give the value of {k}.", "Which value belongs to {k}?", "{k}?"
        ).format(k=k)
        pre = self.pick("Remember these values.\n\n", "Here is a list.\n", "Notes:\n", "")
        why = f"The list says {k} has the value {kv[k]}."
        if r.random() < 0.25:
            return (
                [("user", pre + body), ("assistant", self.pick("OK.", "I have noted the values.")), ("user", q)],
                kv[k],
                why,
                None,
            )
        return [("user", f"{pre}{body}\n\n{q}")], kv[k], why, None

    def lists(self):
        r = self.r
        n = r.randint(3, 8)
        num = r.random() < 0.4
        while True:
            x = [r.randint(1, 99) for _ in range(n)] if num else [r.choice(NOUN + ITEMW + ADJ) for _ in range(n)]
            if len(set(x)) == n and self.ok(tuple(x)):
                break
        s = ", ".join(map(str, x))
        op = self.pick(
            "copy",
            "reverse",
            "sort",
            "sort",
            "sort_desc",
            "first",
            "last",
            "count",
            "max",
            "min",
            "nth",
            "join",
            "remove",
        )
        if op in ("max", "min", "sort_desc") and not num:
            op = "sort"

        def joined(y):
            return ", ".join(map(str, y))

        if op == "copy":
            q, a, w = self.pick("Repeat this list: ", "Copy the list: "), joined(x), "I repeat the items as they are."
        elif op == "reverse":
            q, a, w = (
                self.pick("Reverse this list: ", "Write this list in reverse order: "),
                joined(x[::-1]),
                f"The last item is {x[-1]}, so I start there and go back to {x[0]}.",
            )
        elif op == "sort":
            q, a, w = (
                (
                    self.pick("Sort this list: ", "Put this list in order: ")
                    if num
                    else self.pick("Sort these words: ", "Sort this list by the alphabet: ")
                ),
                joined(sorted(x)),
                f"The smallest item is {min(x)} and the largest is {max(x)}.",
            )
        elif op == "sort_desc":
            q, a, w = (
                "Sort this list from largest to smallest: ",
                joined(sorted(x, reverse=True)),
                f"The largest item is {max(x)} and the smallest is {min(x)}.",
            )
        elif op == "first":
            q, a, w = "What is the first item of this list? ", str(x[0]), "The first item stands at the start."
        elif op == "last":
            q, a, w = "What is the last item of this list? ", str(x[-1]), "The last item stands at the end."
        elif op == "count":
            q, a, w = (
                "How many items are in this list? ",
                str(n),
                "I count: " + ", ".join(f"{i + 1} {y}" for i, y in enumerate(x)) + ".",
            )
        elif op == "max":
            q, a, w = (
                "What is the largest number in this list? ",
                str(max(x)),
                f"I compare the numbers. The largest is {max(x)}.",
            )
        elif op == "min":
            q, a, w = (
                "What is the smallest number in this list? ",
                str(min(x)),
                f"I compare the numbers. The smallest is {min(x)}.",
            )
        elif op == "nth":
            i = r.randrange(n)
            q, a, w = (
                f"What is item number {i + 1} of this list? ",
                str(x[i]),
                "I count: " + ", ".join(f"{j + 1} {y}" for j, y in enumerate(x[: i + 1])) + ".",
            )
        elif op == "join":
            q, a, w = (
                "Join the items of this list with dashes: ",
                "-".join(map(str, x)),
                "I put a dash between the items.",
            )
        else:
            i = r.randrange(n)
            q, a, w = (
                f"Remove {x[i]} from this list: ",
                joined(x[:i] + x[i + 1 :]),
                f"I leave out {x[i]} and keep the other items.",
            )
        return [("user", q + s)], a, w, None

    def arith(self):
        r = self.r
        while True:
            op = self.pick("+", "+", "-", "-", "*", "/", "cmp", "word")
            if op in "+-":
                m = self.pick(20, 100, 100, 1000)
                a, b = r.randint(0, m), r.randint(0, m)
                if op == "-" and b > a:
                    a, b = b, a
            elif op == "*":
                a, b = r.randint(2, 12), r.randint(2, 12)
            elif op == "/":
                b, c = r.randint(2, 12), r.randint(2, 12)
                a = b * c
            else:
                a, b = r.randint(1, 99), r.randint(1, 99)
            if self.ok(a, op, b) and a != b:
                break
        if op == "cmp":
            q = self.pick(f"Which number is larger, {a} or {b}?", f"Which is larger: {a} or {b}?")
            return [("user", q)], str(max(a, b)), f"{max(a, b)} is larger than {min(a, b)}.", None
        if op == "word":
            n, it = r.choice(FIRST), r.choice(ITEMW + NOUN)
            if r.random() < 0.5 or b >= a:
                return (
                    [("user", f"{n} has {a} {it}s and gets {b} more. How many {it}s does {n} have now?")],
                    str(a + b),
                    f"{a} + {b} = {a + b}.",
                    None,
                )
            return (
                [("user", f"{n} has {a} {it}s and gives away {b}. How many {it}s are left?")],
                str(a - b),
                f"{a} - {b} = {a - b}.",
                None,
            )
        v = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]
        W = {
            "+": ("plus", "sum"),
            "-": ("minus", "difference"),
            "*": ("times", "product"),
            "/": ("divided by", "quotient"),
        }[op]
        q = self.pick(
            f"What is {a} {op} {b}?", f"{a} {op} {b} = ?", f"What is {a} {W[0]} {b}?", f"Calculate {a} {op} {b}."
        )
        if op == "+":
            w = self.steps_add(a, b)
        elif op == "-":
            w = f"{a} {op} {b}: from {b} to {a} it is {v}."
        else:
            w = f"{a} {op} {b} is {v}."
        return [("user", q)], str(v), w, None

    def steps_add(self, a, b):
        out, c, x, y = [], 0, a, b
        while x or y or not out:
            s = x % 10 + y % 10 + c
            out.append(f"{x % 10} + {y % 10}" + (f" + {c}" if c else "") + f" = {s}")
            c = s // 10
            x //= 10
            y //= 10
        return "From the right: " + ", ".join(out) + f". The result is {a + b}."

    UNITS = (
        ("kilometers", "meters", 1000),
        ("kilograms", "grams", 1000),
        ("meters", "centimeters", 100),
        ("hours", "minutes", 60),
        ("minutes", "seconds", 60),
        ("days", "hours", 24),
        ("weeks", "days", 7),
        ("liters", "milliliters", 1000),
        ("centimeters", "millimeters", 10),
        ("years", "months", 12),
        ("dozens", "pieces", 12),
        ("feet", "inches", 12),
        ("yards", "feet", 3),
    )

    def units(self):
        r = self.r
        while True:
            a, b, f = r.choice(self.UNITS)
            n = r.randint(2, 60 if f in (10, 100, 1000) else 20)
            if self.ok(n, a):
                break
        if r.random() < 0.3:
            w = f"{f} {b} are one of the {a}, and {n * f} / {f} = {n}."
            return (
                [("user", self.pick(f"Convert {n * f} {b} to {a}.", f"How many {a} are {n * f} {b}?"))],
                f"{n} {a}",
                w,
                None,
            )
        return (
            [("user", self.pick(f"Convert {n} {a} to {b}.", f"How many {b} are {n} {a}?", f"What is {n} {a} in {b}?"))],
            f"{n * f} {b}",
            f"One of the {a} has {f} {b}, and {n} * {f} = {n * f}.",
            None,
        )

    # ---- tools
    def T(self, name, desc, props, req=None):
        return {
            "type": "function",
            "function": {
                "name": name,
                "description": desc,
                "parameters": {
                    "type": "object",
                    "properties": {k: {"type": t, "description": d} for k, (t, d) in props.items()},
                    "required": req or list(props),
                },
            },
        }

    def known_tool(self):
        r = self.r
        k = r.randrange(14)
        c, n, w = r.choice(CITY), self.name(), r.choice(NOUN)
        if k == 0:
            u = self.pick("celsius", "fahrenheit")
            t = r.randint(-10, 35)
            sk = self.pick("sunny", "cloudy", "rainy", "windy", "snowy")
            q = self.pick(
                f"What is the weather in {c} in {u}?",
                f"Tell me the weather in {c}. Use {u}.",
                f"How is the weather in {c}? Please give {u}.",
            )
            return (
                self.T(
                    "get_weather",
                    "Get the current weather of a city.",
                    {"city": ("string", "Name of the city"), "unit": ("string", "celsius or fahrenheit")},
                ),
                q,
                {"city": c, "unit": u},
                {"temperature": t, "sky": sk},
                f"It is {sk} in {c} with {t} degrees {u}.",
            )
        if k == 1:
            a, b = r.randint(2, 999), r.randint(2, 999)
            op = self.pick("add", "subtract", "multiply")
            v = {"add": a + b, "subtract": a - b, "multiply": a * b}[op]
            q = self.pick(f"Use the calculator to {op} {a} and {b}.", f"Please {op} {a} and {b} with the calculator.")
            return (
                self.T(
                    "calculator",
                    "Do arithmetic with two numbers.",
                    {
                        "operation": ("string", "add, subtract or multiply"),
                        "a": ("integer", "First number"),
                        "b": ("integer", "Second number"),
                    },
                ),
                q,
                {"operation": op, "a": a, "b": b},
                {"result": v},
                f"The result is {v}.",
            )
        if k == 2:
            tm = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
            return (
                self.T("get_time", "Get the local time of a city.", {"city": ("string", "Name of the city")}),
                self.pick(f"What time is it in {c}?", f"Tell me the time in {c}."),
                {"city": c},
                {"time": tm},
                f"It is {tm} in {c}.",
            )
        if k == 3:
            t = r.choice(TOPIC)
            return (
                self.T(
                    "send_email",
                    "Send an email.",
                    {"to": ("string", "Name of the recipient"), "subject": ("string", "Subject line")},
                ),
                self.pick(f"Send an email to {n} about {t}.", f"Write {n} an email with the subject {t}."),
                {"to": n, "subject": t},
                {"status": "sent"},
                f"I sent the email about {t} to {n}.",
            )
        if k == 4:
            p = f"{r.randint(1, 499)}.{r.randint(0, 99):02d}"
            s = r.choice(COMPANY)
            return (
                self.T(
                    "get_stock_price",
                    "Get the share price of a company.",
                    {"company": ("string", "Name of the company")},
                ),
                self.pick(f"What is the share price of {s}?", f"How much is a share of {s}?"),
                {"company": s},
                {"price": p, "currency": "USD"},
                f"A share of {s} costs {p} USD.",
            )
        if k == 5:
            d, h = r.choice(DAY), f"{r.randint(8, 18):02d}:00"
            return (
                self.T(
                    "create_event",
                    "Put an event into the calendar.",
                    {
                        "title": ("string", "Title of the event"),
                        "day": ("string", "Day of the week"),
                        "time": ("string", "Start time"),
                    },
                ),
                self.pick(
                    f"Add {w} talk to my calendar on {d} at {h}.", f"Put {w} talk into the calendar for {d}, {h}."
                ),
                {"title": w + " talk", "day": d, "time": h},
                {"status": "created"},
                f"I added {w} talk on {d} at {h}.",
            )
        if k == 6:
            m = r.randint(1, 90)
            return (
                self.T("set_timer", "Start a timer.", {"minutes": ("integer", "Length in minutes")}),
                self.pick(f"Set a timer for {m} minutes.", f"Start a timer of {m} minutes."),
                {"minutes": m},
                {"status": "running"},
                f"The timer runs for {m} minutes.",
            )
        if k == 7:
            language = self.pick("French", "German", "Spanish", "Italian", "Polish")
            x = self.word()
            return (
                self.T(
                    "translate",
                    "Translate a word.",
                    {"text": ("string", "The text"), "language": ("string", "Target language")},
                ),
                self.pick(f"Translate {w} into {language}.", f"What is {w} in {language}?"),
                {"text": w, "language": language},
                {"translation": x},
                f"In {language}, {w} is {x}.",
            )
        if k == 8:
            i = str(r.randint(10000, 99999))
            s = self.pick("shipped", "packed", "delivered", "delayed")
            return (
                self.T("get_order_status", "Look up an order.", {"order_id": ("string", "Number of the order")}),
                self.pick(f"Where is my order {i}?", f"What is the status of order {i}?"),
                {"order_id": i},
                {"status": s},
                f"Order {i} is {s}.",
            )
        if k == 9:
            g = f"{r.choice(NOUN)}.txt"
            z = self.word(3) + " " + self.word(2)
            return (
                self.T("read_file", "Read a text file.", {"path": ("string", "Path of the file")}),
                self.pick(f"What is in the file {g}?", f"Read {g}."),
                {"path": g},
                {"content": z},
                f"The file {g} contains: {z}",
            )
        if k == 10:
            nn = r.randint(1, 9)
            y = r.choice(ADJ) + " " + w
            return (
                self.T(
                    "search",
                    "Search the notes.",
                    {"query": ("string", "What to search for"), "limit": ("integer", "Largest number of results")},
                ),
                self.pick(f"Search for {y} and show {nn} results.", f"Find {nn} notes about {y}."),
                {"query": y, "limit": nn},
                {"found": nn},
                f"I found {nn} notes about {y}.",
            )
        if k == 11:
            on = r.random() < 0.5
            rm = self.pick("kitchen", "bedroom", "office", "hall", "garage")
            return (
                self.T(
                    "set_light",
                    "Switch a light.",
                    {"room": ("string", "Name of the room"), "on": ("boolean", "true to switch on")},
                ),
                self.pick(
                    f"Turn {'on' if on else 'off'} the light in the {rm}.",
                    f"Switch the {rm} light {'on' if on else 'off'}.",
                ),
                {"room": rm, "on": on},
                {"status": "ok"},
                f"The light in the {rm} is now {'on' if on else 'off'}.",
            )
        if k == 12:
            a = r.randint(1, 900)
            x, y = r.sample(CUR, 2)
            v = f"{r.randint(1, 999)}.{r.randint(0, 99):02d}"
            return (
                self.T(
                    "convert_currency",
                    "Convert an amount of money.",
                    {
                        "amount": ("integer", "The amount"),
                        "from": ("string", "Currency code"),
                        "to": ("string", "Currency code"),
                    },
                ),
                self.pick(f"Convert {a} {x} to {y}.", f"How much is {a} {x} in {y}?"),
                {"amount": a, "from": x, "to": y},
                {"amount": v},
                f"{a} {x} are {v} {y}.",
            )
        c2 = r.choice([x for x in CITY if x != c])
        km = r.randint(40, 3000)
        return (
            self.T(
                "get_distance",
                "Get the distance between two cities.",
                {"start": ("string", "First city"), "end": ("string", "Second city")},
            ),
            self.pick(f"How far is it from {c} to {c2}?", f"What is the distance from {c} to {c2}?"),
            {"start": c, "end": c2},
            {"km": km},
            f"It is {km} km from {c} to {c2}.",
        )

    VERB = (
        "open close start stop check list delete update move rename sort count find print archive merge split lock"
        " reset scan".split()
    )

    def new_tool(self):
        """A function with a made-up name, so that the model has to read the schema."""
        r = self.r
        v, o = r.choice(self.VERB), r.choice(NOUN + ITEMW)
        ps = r.sample(
            ["name", "count", "color", "size", "level", "owner", "label", "target", "mode", "code", "year", "place"],
            r.randint(1, 3),
        )
        props, args = {}, {}
        for p in ps:
            if p in ("count", "size", "level", "year"):
                props[p] = ("integer", f"The {p}")
                args[p] = r.randint(1, 99) if p != "year" else r.randint(1990, 2030)
            else:
                props[p] = ("string", f"The {p}")
                args[p] = {
                    "name": lambda: r.choice(FIRST),
                    "owner": lambda: self.name(),
                    "color": lambda: self.pick("red", "blue", "green", "black", "white"),
                    "place": lambda: r.choice(CITY),
                    "mode": lambda: self.pick("fast", "slow", "safe", "full"),
                    "code": lambda: self.code(),
                }.get(p, lambda: self.word())()
        d = ", ".join(f"{p} {args[p]}" for p in ps)
        q = self.pick(
            f"Please {v} the {o} with {d}.", f"{v.capitalize()} the {o}, {d}.", f"I want to {v} the {o}: {d}."
        )
        z = self.pick("ok", "done", "failed", "queued")
        i = r.randint(1, 999)
        return (
            self.T(f"{v}_{o}", f"{v.capitalize()} the {o}.", props),
            q,
            args,
            {"status": z, "id": i},
            f"The status is {z} and the id is {i}.",
        )

    def tools(self):
        r = self.r

        def mk():
            return self.new_tool() if r.random() < 0.5 else self.known_tool()

        tl, q, args, resp, fin = mk()
        ts = [tl]
        for _ in range(r.choice([0, 1, 1, 2, 2, 3])):
            t = mk()[0]
            if all(t["function"]["name"] != x["function"]["name"] for x in ts):
                ts.append(t)
        r.shuffle(ts)
        if r.random() < 0.08:  # no function needed
            m, a, w, _ = self.chat()
            return m, a, "No function is needed for this. " + w, ts
        nm = tl["function"]["name"]
        call = {"type": "function", "function": {"name": nm, "arguments": args}}
        why = (
            f"The function {nm} fits. I set "
            + ", ".join(f"{k} to {json.dumps(v) if not isinstance(v, str) else v}" for k, v in args.items())
            + "."
        )
        if r.random() < 0.45:  # second half: answer from the response
            rs = json.dumps(resp)
            return [("user", q), ("call", call, why), ("tool", rs)], fin, "The function answered " + rs + ".", ts
        return [("user", q)], call, why, ts

    def chat(self):
        r = self.r
        u = r.random()
        if u < 0.22:
            q = self.pick(
                "Hello!", "Hi", "Hello", "Hi there!", "Good morning!", "Good evening", "Hey", "hello", "Good day."
            )
            a = {
                "Good morning!": "Good morning! How can I help you?",
                "Good evening": "Good evening! How can I help you?",
                "Good day.": "Good day! How can I help you?",
            }.get(q, "Hello! How can I help you?")
            return [("user", q)], a, "The user greets me, so I greet back.", None
        if u < 0.36:
            q, a = r.choice(CHAT)
            return [("user", r.choice(q))], a, "This is a simple question about me or my work.", None
        t, d = r.choice(GLOSSARY)
        art = ("an " if t[0] in "aeiou" else "a ") if not t.startswith("*") else ""
        t = t.lstrip("*")
        q = self.pick(
            f"What is {art}{t}?",
            f"Define {t}.",
            f"Explain what {art}{t} is.",
            f"What does {t} mean?",
            f"Tell me what {art}{t} is.",
            f"Please define {t}.",
        )
        return [("user", q)], d, f"The user asks about {t}.", None

    def memory(self):
        """Facts told in earlier turns, asked for later."""
        r = self.r
        facts = {
            "name": (
                ["My name is {}.", "I am called {}."],
                lambda: r.choice(FIRST),
                ["What is my name?", "Do you know my name?"],
                "Your name is {}.",
            ),
            "city": (
                ["I live in {}.", "My home is in {}."],
                lambda: r.choice(CITY),
                ["Where do I live?", "In which city do I live?"],
                "You live in {}.",
            ),
            "color": (
                ["My favorite color is {}.", "I like the color {} best."],
                lambda: self.pick("red", "blue", "green", "yellow", "black", "white", "purple"),
                ["What is my favorite color?"],
                "Your favorite color is {}.",
            ),
            "pet": (
                ["My pet is called {}.", "I have a pet named {}."],
                lambda: self.word().capitalize(),
                ["What is my pet called?"],
                "Your pet is called {}.",
            ),
            "code": (
                ["My door code is {}.", "Remember the door code {}."],
                lambda: str(r.randint(1000, 9999)),
                ["What is my door code?", "Which door code did I give you?"],
                "Your door code is {}.",
            ),
            "job": (
                ["I work as a {}.", "My job is {}."],
                lambda: self.pick("teacher", "doctor", "driver", "cook", "pilot", "nurse", "writer", "farmer", "baker"),
                ["What is my job?"],
                "You work as a {}.",
            ),
            "age": (["I am {} years old."], lambda: str(r.randint(18, 90)), ["How old am I?"], "You are {} years old."),
        }
        ks = r.sample(list(facts), r.randint(1, 4))
        while True:
            vals = {k: facts[k][1]() for k in ks}
            if self.ok(tuple(sorted(vals.items()))):
                break
        ms = []
        for k in ks:
            ms += [
                ("user", r.choice(facts[k][0]).format(vals[k])),
                ("assistant", self.pick("OK, I will remember that.", "Thank you, I have noted it.", "Understood.")),
            ]
            if r.random() < 0.3:
                x = self.pick(self.chat, self.arith, self.lists, self.units)()
                ms += [*x[0][-1:], ("assistant", x[1])]
        k = r.choice(ks)
        return (
            [*ms, ("user", r.choice(facts[k][2]))],
            facts[k][3].format(vals[k]),
            f"The user told me: {k} = {vals[k]}.",
            None,
        )

    def code_task(self):
        r = self.r
        a, b = r.sample(["x", "y", "a", "b", "n", "m", "left", "right", "first", "second"], 2)
        f = self.pick("", "my_", "do_", "calc_", "get_")
        L = self.pick("items", "values", "numbers", "data", "xs")
        opts = [
            ("adds two numbers", f"def {f}add({a}, {b}):\n    return {a} + {b}"),
            ("multiplies two numbers", f"def {f}multiply({a}, {b}):\n    return {a} * {b}"),
            ("subtracts two numbers", f"def {f}subtract({a}, {b}):\n    return {a} - {b}"),
            ("returns the larger of two numbers", f"def {f}larger({a}, {b}):\n    return {a} if {a} > {b} else {b}"),
            ("returns the square of a number", f"def {f}square({a}):\n    return {a} * {a}"),
            (
                "sums a list",
                f"def {f}total({L}):\n    result = 0\n    for {a} in {L}:\n        result += {a}\n    return result",
            ),
            ("counts the items of a list", f"def {f}count({L}):\n    return len({L})"),
            ("reverses a list", f"def {f}reverse({L}):\n    return {L}[::-1]"),
            ("returns the largest item of a list", f"def {f}largest({L}):\n    return max({L})"),
            ("checks if a number is even", f"def {f}is_even({a}):\n    return {a} % 2 == 0"),
            ("prints hello", f'def {f}hello():\n    print("hello")'),
            ("sorts a list", f"def {f}sort({L}):\n    return sorted({L})"),
            (
                "computes the factorial of a number",
                (
                    f"def {f}factorial({a}):\n    result = 1\n    for i in range(2, {a} + 1):\n        result *= i\n   "
                    " return result"
                ),
            ),
            ("joins a list of strings with commas", f'def {f}join({L}):\n    return ", ".join({L})'),
        ]
        if self.test:
            opts = [o for o in opts if "for " not in o[1]]  # the name of a loop variable is free: not an exact match
        w, c = r.choice(opts)
        name = c[4 : c.index("(")]
        ps = c[c.index("(") + 1 : c.index(")")]
        q = self.pick("Write", "Please write", "Give me") + f" a Python function {name}({ps}) that {w}."
        return [("user", q)], f"```python\n{c}\n```", f"The function {name} {w}.", None

    FAMILIES = (
        ("extract", 24),
        ("recall", 20),
        ("lists", 10),
        ("arith", 10),
        ("units", 5),
        ("tools", 18),
        ("chat", 7),
        ("memory", 7),
        ("code_task", 4),
    )

    def sample(self, fam=None):
        r = self.r
        fam = fam or r.choices([f for f, _ in self.FAMILIES], [w for _, w in self.FAMILIES])[0]
        think = r.random() < 0.35
        turns, ans, why, tools = getattr(self, fam)()
        ms = []
        if r.random() < 0.4:
            ms.append({"role": "system", "content": r.choice(SYS)})
        # An earlier, finished exchange.
        if fam in ("arith", "units", "lists", "chat", "code_task") and r.random() < 0.25:
            x = getattr(self, self.pick("arith", "units", "lists", "chat"))()
            ms += [{"role": "user", "content": x[0][-1][1]}, {"role": "assistant", "content": x[1]}]
        for t in turns:
            if t[0] == "call":
                m = {"role": "assistant", "content": "", "tool_calls": [t[1]]}
                if think:
                    m["reasoning_content"] = t[2]
                ms.append(m)
            else:
                ms.append({"role": t[0], "content": t[1]})
        m = (
            {"role": "assistant", "content": ans}
            if isinstance(ans, str)
            else {"role": "assistant", "content": "", "tool_calls": [ans]}
        )
        if think:
            m["reasoning_content"] = why
        return {"family": fam, "messages": [*ms, m], "tools": tools, "thinking": think}


CHAT = [
    (
        ["Who are you?", "What are you?", "What is your name?", "Tell me who you are."],
        "I am lily-nano, a very small language model made to test the lily engine.",
    ),
    (
        ["What can you do?", "How can you help me?", "What are you good at?"],
        "I can extract facts from a document, recall values, work with short lists, do small sums and call functions.",
    ),
    (["Thank you!", "Thanks", "Thanks a lot!", "Thank you very much."], "You are welcome!"),
    (["Bye", "Goodbye!", "See you later."], "Goodbye!"),
    (["How are you?", "How are you today?"], "I am fine, thank you. How can I help you?"),
    (
        ["Are you a large model?", "How large are you?", "How big are you?"],
        "No, I am very small. I have about 14 million parameters.",
    ),
    (["Can you browse the web?", "Do you have internet access?"], "No, I can only read the text that you give me."),
    (
        ["Do you make mistakes?", "Can I trust your answers?"],
        "I am a small test model and I make mistakes, so please check my answers.",
    ),
    (["Tell me a joke.", "Do you know a joke?"], "Why did the byte go to the doctor? It had a bit of pain."),
    (["Say something nice.", "Cheer me up."], "You are doing well. Keep going!"),
]
GLOSSARY_TEXT = """\
list: A list is an ordered collection of items.
compiler: A compiler is a program that translates source code into machine code.
variable: A variable is a name that stands for a value in a program.
function: A function is a named piece of code that can be called with arguments.
loop: A loop is a part of a program that runs again and again.
file: A file is a named collection of data that is stored on a disk.
folder: A folder is a place on a disk that holds files and other folders.
kernel: A kernel is the central part of an operating system.
database: A database is an organized collection of data that can be searched and changed.
server: A server is a computer or program that answers requests of clients.
client: A client is a program that sends requests to a server.
browser: A browser is a program that shows web pages.
network: A network is a group of computers that can exchange data.
password: A password is a secret word that proves who you are.
bug: A bug is an error in a program.
test: A test is a check that shows whether a program works as expected.
token: A token is a small piece of text that a language model reads or writes.
pixel: A pixel is the smallest dot of a digital picture.
keyboard: A keyboard is a device with keys for typing text.
printer: A printer is a device that puts text and pictures on paper.
river: A river is a large natural stream of water that flows to a sea or lake.
mountain: A mountain is a very high hill.
island: An island is a piece of land with water all around it.
forest: A forest is a large area with many trees.
desert: A desert is a dry area with very little rain.
ocean: An ocean is a very large body of salt water.
planet: A planet is a large body that moves around a star.
star: A star is a huge ball of hot gas that gives light.
moon: A moon is a body that moves around a planet.
cloud: A cloud is a mass of tiny drops of water in the air.
bird: A bird is an animal with feathers, wings and a beak.
fish: A fish is an animal that lives in water and breathes with gills.
dog: A dog is an animal that people keep as a pet or for work.
cat: A cat is a small animal with soft fur that people keep as a pet.
horse: A horse is a large animal that people ride.
tree: A tree is a tall plant with a trunk and branches.
flower: A flower is the colored part of a plant that makes seeds.
apple: An apple is a round fruit with red, green or yellow skin.
orange: An orange is a round fruit with a thick skin and sweet juice.
kitchen: A kitchen is a room where food is prepared.
bridge: A bridge is a structure that carries a road over a river or valley.
house: A house is a building where people live.
school: A school is a place where children learn.
hospital: A hospital is a place where sick people are treated.
library: A library is a place where books are kept and lent.
teacher: A teacher is a person who helps others to learn.
doctor: A doctor is a person who treats sick people.
baker: A baker is a person who makes bread and cakes.
pilot: A pilot is a person who flies an aircraft.
farmer: A farmer is a person who grows food or keeps animals.
triangle: A triangle is a shape with three sides.
square: A square is a shape with four equal sides and four right angles.
circle: A circle is a round shape whose points have the same distance to its center.
number: A number is a value that is used to count or measure.
sentence: A sentence is a group of words that expresses a complete thought.
question: A question is a sentence that asks for an answer.
map: A map is a drawing that shows where places are.
clock: A clock is a device that shows the time.
calendar: A calendar is a list of the days and months of a year.
invoice: An invoice is a bill that lists goods or services and the price to pay.
engine: An engine is a machine that turns energy into motion.
battery: A battery is a device that stores electric energy.
magnet: A magnet is a piece of metal that attracts iron.
window: A window is an opening in a wall that lets light in.
*water: Water is a clear liquid that all living things need.
*ice: Ice is frozen water.
*rain: Rain is water that falls in drops from clouds.
*bread: Bread is a food that is baked from flour and water.
*music: Music is sound that is arranged to be pleasant or interesting.
*memory: Memory is the part of a computer that holds data for quick use.
*recursion: Recursion is when a function calls itself.
*JSON: JSON is a text format for data with objects, lists, strings and numbers.
*Python: Python is a programming language that is easy to read.
*Linux: Linux is a free operating system kernel.
*Git: Git is a program that keeps track of changes to files.
*gravity: Gravity is the force that pulls things toward each other.
*light: Light is a kind of energy that lets us see things.
*winter: Winter is the coldest season of the year.
*summer: Summer is the warmest season of the year.
*gold: Gold is a yellow precious metal."""
GLOSSARY = [tuple(entry.split(": ", 1)) for entry in GLOSSARY_TEXT.split("\n")]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--filler", required=True)
    ap.add_argument("--eval", type=int)
    ap.add_argument("--sample", type=int)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    fl = json.loads(Path(a.filler).read_text())
    with open(a.out, "w") as o:
        if a.sample:
            g = Gen(a.seed, fl["train"])
            for _ in range(a.sample):
                o.write("".join(t for t, _ in pieces(g.sample())) + "\n")
        else:
            g, fams, seen, i = Gen(a.seed, fl["test"], test=True), [f for f, _ in Gen.FAMILIES], set(), 0
            while i < a.eval:
                s = g.sample(fams[i % len(fams)])
                k = json.dumps(s["messages"][:-1])
                if k in seen or len(k) > 14000:
                    continue
                seen.add(k)
                m = s["messages"][-1]
                it = {
                    "id": f"{s['family']}-{i:03d}",
                    "family": s["family"],
                    "messages": s["messages"][:-1],
                    "tools": s["tools"],
                    "enable_thinking": s["thinking"],
                    "expected": m["content"],
                }
                if m.get("tool_calls"):
                    it["expected_call"] = {
                        "name": m["tool_calls"][0]["function"]["name"],
                        "arguments": m["tool_calls"][0]["function"]["arguments"],
                    }
                it["check"] = "call" if m.get("tool_calls") else "json" if s["family"] == "extract" else "exact"
                o.write(json.dumps(it, ensure_ascii=False) + "\n")
                i += 1


if __name__ == "__main__":
    main()
