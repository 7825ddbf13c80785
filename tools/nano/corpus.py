"""Build the plain-text part of the lily-nano training data.

usage: corpus.py --deb DIR --py DIR [--py DIR ...] --out corpus.jsonl

--deb  a folder that holds one sub-folder per unpacked Debian package
       (see README.md for the package list and the two commands that fetch and unpack them)
--py   folders with Python source (the standard library, site-packages)

Writes one JSON object a line: {"src": package, "split": "train"|"test", "text": ...}.
About one document in 150 goes to the held-out split (chosen by a hash of its path).
"""

import argparse
import gzip
import hashlib
import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

SKIP = {"script", "style", "nav", "head", "footer", "svg", "button", "form"}
BLOCK = {
    "p",
    "div",
    "br",
    "li",
    "tr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "dt",
    "dd",
    "pre",
    "ul",
    "ol",
    "table",
    "section",
    "title",
}


class Text(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.skip, self.pre = [], 0, 0

    def handle_starttag(self, tag, attrs):
        if tag in SKIP:
            self.skip += 1
        if tag == "pre":
            self.pre += 1
        if tag in BLOCK:
            self.out.append("\n")
        if tag == "li":
            self.out.append("- ")
        if tag in ("p", "h1", "h2", "h3", "pre", "table"):
            self.out.append("\n")

    def handle_endtag(self, tag):
        if tag in SKIP and self.skip:
            self.skip -= 1
        if tag == "pre" and self.pre:
            self.pre -= 1
        if tag in BLOCK:
            self.out.append("\n")

    def handle_data(self, d):
        if not self.skip:
            self.out.append(d if self.pre else re.sub(r"\s+", " ", d))


def from_html(s):
    m = re.search(r"<(main|body)\b.*?</\1>", s, re.S | re.I)
    p = Text()
    try:
        p.feed(m.group(0) if m else s)
    except Exception:
        return ""
    return "".join(p.out)


def from_page(s):  # Mallard XML of the GNOME help
    s = re.sub(r"<info>.*?</info>", "", s, flags=re.S)
    s = re.sub(r"<!--.*?-->", "", s, flags=re.S)
    s = re.sub(r"\s+", " ", s)
    s = re.sub(r"<(p|title|item|section|steps|list|note|desc)\b[^>]*>", "\n", s)
    return html.unescape(re.sub(r"<[^>]+>", "", s))


def from_man(s):
    out = []
    for line in s.split("\n"):
        if line.startswith(('.\\"', "'\\\"")):
            continue
        m = re.match(r"^[.']\s*(\w+)\s*(.*)$", line)
        if m:
            c, a = m.groups()
            a = a.replace('"', "")
            if c in ("SH", "SS"):
                out.append("\n\n" + a + "\n")
            elif c in ("PP", "P", "LP", "sp", "TP", "br"):
                out.append("\n")
            elif c == "IP":
                out.append("\n" + a + " ")
            elif c in ("B", "I"):
                out.append(a + " ")
            elif c in ("BR", "BI", "IR", "RB", "RI", "IB"):
                out.append("".join(a.split(" ")) + " ")
            continue
        out.append(line + (" " if line.strip() else "\n"))
    s = "".join(out)
    s = re.sub(r"\\f[BIRP]|\\f\(CW|\\&|\\/|\\,|\\c", "", s)
    for a, b in (
        (r"\-", "-"),
        (r"\(aq", "'"),
        (r"\(dq", '"'),
        (r"\(bu", "-"),
        (r"\(em", "--"),
        (r"\e", "\\"),
        (r"\ ", " "),
        (r"\(co", "(c)"),
        (r"\(ti", "~"),
        (r"\(ha", "^"),
    ):
        s = s.replace(a, b)
    return re.sub(r"\\\[[^]]*\]|\\\(..|\\s[-+]?\d", "", s)


def from_pod(s):
    out, on = [], s.lstrip().startswith("=")
    for line in s.split("\n"):
        if line.startswith("="):
            on = not line.startswith(("=cut", "=begin", "=for"))
            m = re.match(r"=(head\d|item)\s+(.*)", line)
            if m:
                out.append(m.group(2))
            continue
        if on:
            out.append(line)
    s = "\n".join(out)
    for _ in range(3):
        s = re.sub(r"\b[A-Z]<([^<>]*)>", r"\1", s)
    return s


def from_rst(s):
    s = re.sub(
        r"^\.\. (index|highlight|currentmodule|module|sectionauthor|moduleauthor|include|SPDX).*\n(?:[ \t]+.*\n)*",
        "",
        s,
        flags=re.M,
    )
    s = re.sub(r":[a-zA-Z:+]+:`~?!?([^`<]*?)(?: ?<[^`>]*>)?`", r"\1", s)
    return s.replace("``", "`")


def tidy(s):
    s = s.replace("\r", "").replace("\t", "    ").replace("\xa0", " ").replace("¶", "")
    s = re.sub(r"[\u2018\u2019]", "'", s)
    s = re.sub(r"[\u201c\u201d]", '"', s)
    s = re.sub(r"[^\x00-\uffff]", "", s)
    s = re.sub(r"[ \t]+\n", "\n", s)
    s = re.sub(r"\n{3,}", "\n\n", s)
    s = re.sub(r"([-=~*#_.+^\"]{8})[-=~*#_.+^\"]+", r"\1", s)
    s = re.sub(r" {9,}", "        ", s)
    return s.strip() + "\n"


def wordnet(d):
    for pos in ("noun", "verb", "adj", "adv"):
        for root, _, fs in os.walk(d):
            for f in fs:
                if f == "data." + pos:
                    buf = []
                    with open(os.path.join(root, f), encoding="latin-1") as lines:
                        for line in lines:
                            if line.startswith("  ") or "|" not in line:
                                continue
                            h, gl = line.split("|", 1)
                            p = h.split()
                            n = int(p[3], 16)
                            w = [p[4 + 2 * i].replace("_", " ").split("(")[0] for i in range(n)]
                            buf.append(f"{', '.join(w)}: {gl.strip()}")
                            if len(buf) == 60:
                                yield "\n".join(buf)
                                buf = []


RULES = [  # package prefix, path pattern, reader, byte limit
    ("python3.11-doc", r"_sources/.*\.txt$", from_rst, 12e6),
    (
        "linux-doc",
        r"/(admin-guide|process|core-api|driver-api|filesystems|networking|dev-tools|kernel-hacking|"
        r"doc-guide|mm|scheduler|locking|block|security|userspace-api|trace|usb|sound|virt|gpu|driver|"
        r"hwmon|arch|x86|arm64|power|rcu|bpf|i2c|iio|media|fb|input|leds|maintainer|translations/none|PCI|"
        r"RCU|accounting|cpu-freq|hid|misc-devices|timers|tools|watchdog|spi|firmware-guide|"
        r"fault-injection|livepatch|staging|nvdimm|target|mhi|netlabel|pcmcia|ABI)/.*\.rst(\.gz)?$",
        from_rst,
        26e6,
    ),
    ("postgresql-doc", r"\.html$", from_html, 9e6),
    ("python-django-doc", r"\.html$", from_html, 10e6),
    ("apache2-doc", r"/en/.*\.html$|manual/[^/]*\.html(\.en)?$", from_html, 4e6),
    ("sqlite3-doc", r"\.html$", from_html, 9e6),
    ("debian-reference-en", r"\.txt(\.gz)?$", None, 3e6),
    ("debian-policy", r"_sources/.*\.txt$|\.rst$|policy\.txt", from_rst, 3e6),
    ("developers-reference", r"_sources/.*\.txt$", from_rst, 3e6),
    ("debian-faq", r"\.html$", from_html, 3e6),
    ("git-doc", r"\.txt$", None, 5e6),
    ("cmake-doc", r"_sources/.*\.txt$|\.rst(\.txt)?$", from_rst, 4e6),
    ("python-sqlalchemy-doc", r"\.rst(\.txt)?$", from_rst, 4e6),
    ("nodejs-doc", r"\.md(\.gz)?$", None, 4e6),
    ("bash-doc", r"bashref\.html$|FAQ|INTRO", from_html, 2e6),
    ("perl-doc", r"\.pod(\.gz)?$", from_pod, 10e6),
    ("vim-runtime", r"doc/.*\.txt$", None, 6e6),
    ("gnome-user-docs", r"/C/.*\.page$", from_page, 4e6),
    ("manpages", r"man\d/.*\.gz$", from_man, 5e6),
    (
        "rust-doc",
        r"html/(book|reference|rust-by-example|cargo|nomicon|edition-guide|rustc|std)/.*\.html$",
        from_html,
        12e6,
    ),
]


def read(p):
    try:
        b = Path(p).read_bytes()
        if p.endswith(".gz"):
            b = gzip.decompress(b)
        return b.decode("utf-8", "replace")
    except Exception:
        return ""


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--deb", required=True)
    ap.add_argument("--py", action="append", default=[])
    ap.add_argument("--py-limit", type=float, default=20e6)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    seen, tot = set(), {}
    with open(a.out, "w") as o:

        def emit(src, key, t):
            t = tidy(t)
            if len(t) < 300 or t.count("\ufffd") > 3:
                return 0
            if sum(c > "\u024f" for c in t) > len(t) * 0.05:
                return 0
            h = hashlib.sha1(re.sub(r"\W+", "", t)[:2000].encode()).hexdigest()
            if h in seen:
                return 0
            seen.add(h)
            sp = "test" if int(hashlib.sha1(key.encode()).hexdigest(), 16) % 150 == 0 else "train"
            o.write(json.dumps({"src": src, "split": sp, "text": t}, ensure_ascii=False) + "\n")
            n = len(t.encode())
            tot[(src, sp)] = tot.get((src, sp), 0) + n
            return n

        for pkg in sorted(os.listdir(a.deb)):
            base = os.path.join(a.deb, pkg)
            if pkg.startswith("wordnet"):
                for i, t in enumerate(wordnet(base)):
                    emit("wordnet", f"wn{i}", t)
                continue
            for pre, pat, fn, lim in RULES:
                if not pkg.startswith(pre):
                    continue
                fs = sorted(
                    (os.path.join(r, f) for r, _, ff in os.walk(base) for f in ff),
                    key=lambda p: hashlib.sha1(p[len(base) :].encode()).hexdigest(),
                )
                n = 0
                for p in fs:
                    if n > lim:
                        break
                    if os.path.islink(p) or not re.search(pat, p):
                        continue
                    s = read(p)
                    n += emit(pkg, p[len(base) :], fn(s) if fn else s)
        n = 0
        fs = []
        for d in a.py:
            fs += [
                (os.path.join(r, f), os.path.join(r, f)[len(d) :])
                for r, _, ff in os.walk(d)
                for f in ff
                if f.endswith(".py")
                and "/test" not in r
                and "idlelib" not in r
                and "site-packages" not in os.path.join(r, f)[len(d) :]
            ]
        fs.sort(key=lambda x: hashlib.sha1(x[1].encode()).hexdigest())
        for p, k in fs:
            if n > a.py_limit:
                break
            s = read(p)
            if len(s) > 120_000 or len(s) < 500:
                continue
            s = re.sub(r"\A(#.*\n|\s*\n)+", "", s)  # licence headers: the same text thousands of times
            n += emit("python-source", k, s)
    for k, v in sorted(tot.items()):
        print(k, round(v / 1e6, 2), "MB")
    print("total", round(sum(tot.values()) / 1e6, 1), "MB")


if __name__ == "__main__":
    main()
