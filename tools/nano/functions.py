"""Tasks that call a function, and those that answer from its result."""

# ruff: noqa: SIM905  (word lists read better as text)

import json

from conversation import Conversation
from words import ADJ, CITY, COMPANY, CUR, DAY, FIRST, ITEMW, NOUN, TOPIC


class Functions(Conversation):
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
