"""Tasks about a document: facts to extract, values to recall."""

import json

from parts import Parts
from words import CITY, COMPANY, DAY, ITEMW, TOPIC


class Documents(Parts):
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
