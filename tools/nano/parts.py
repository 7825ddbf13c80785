"""What tasks are made of. Names, keys and numbers are split by their hash: 1 in 8 is for evaluation only."""

import random
import zlib

from words import ADJ, COMPANY, CUR, FIRST, LAST, MONTH, NOUN, SUFFIX


def held(*key):
    return zlib.crc32(repr(key).encode()) % 8 == 0


class Parts:
    """A random generator, and the small parts that tasks are made of: names, codes, dates, filler."""

    def __init__(self, seed, filler, test=False):
        self.r, self.fill, self.test = random.Random(seed), filler, test

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
