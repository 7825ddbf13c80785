"""Tasks that ask for a small Python function."""

from parts import Parts


class Programs(Parts):
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
