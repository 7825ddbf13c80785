"""Tasks with numbers: sums, products and units."""

from parts import Parts
from words import FIRST, ITEMW, NOUN


class Arithmetic(Parts):
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
