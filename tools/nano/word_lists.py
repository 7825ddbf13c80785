"""Tasks about a list of words or numbers."""

from parts import Parts
from words import ADJ, ITEMW, NOUN


class WordLists(Parts):
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
