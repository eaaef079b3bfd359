#!/usr/bin/env python3
"""Books to clean text: read every book of the manifest from its git repository, clean it, write A.txt, B.txt, val.txt.

The manifest is the selection: it names repository, commit and file of each book, so that the text stays the one the
demo model saw, and a hash of the cleaned text, so that a change to the rules below cannot pass unnoticed.
The books come as Markdown or as Project Gutenberg plain text; what is not the author's prose (licence, title page,
contents, notes, illustrations) is dropped, because a small model learns such lines by heart first.
Standard library and git only.
"""
import argparse
import hashlib
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

from common import TEXT_STREAMS, write_books

# Typographic quotes and dashes to ASCII: the 4096-entry vocabulary has no room for two of each.
TO_ASCII = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u2032": "'", "`": "'",
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2033": '"',
    "\u2012": "-", "\u2013": "-", "\u2014": "--", "\u2015": "--", "\u2026": "...",
    "\u00a0": " ", "\ufeff": "", "\u00ad": "", "\u200b": "",
})
SHORT_NOTICE = re.compile(
    r"gutenberg|transcrib|produced by|e-?text|proofread|copyright|table of contents|^contents$|^index$"
    r"|^illustrations$|list of illustrations|footnotes?:", re.I)
NOTICE = re.compile(r"gutenberg|electronic work|small print!|\betexts?\b|\[changed|\[added|\[deleted", re.I)
GUTENBERG_START = re.compile(r"\*\*\* ?START OF (?:THE|THIS) PROJECT[^\n]*\n", re.I)
GUTENBERG_SMALL_PRINT = re.compile(r"\*END\*?\s?THE SMALL PRINT[^\n]*\n")
GUTENBERG_END = re.compile(
    r"\n[^\n]*(?:\*\*\* ?END OF (?:THE|THIS) PROJECT|End of (?:the |this )?Project Gutenberg"
    r"|\*\*\*\*\* This file should be named|START: FULL LICENSE|THE FULL PROJECT GUTENBERG LICENSE)", re.I)


def raw_paragraphs(text):
    for block in re.split(r"\n[ \t\r]*\n+", text.replace("\r\n", "\n")):
        lines = block.split("\n")
        if len(lines) > 1 and any(line.lstrip().startswith("#") for line in lines):
            yield from lines  # a heading glued to its text
        else:
            yield block


def clean_paragraph(p):
    p = unicodedata.normalize("NFC", p.translate(TO_ASCII))
    p = re.sub(r"\[(?:Illustration|Footnote|Transcriber|Sidenote)[^\]]*\]", "", p, flags=re.I)
    p = re.sub(r"\[\^?\d+\]|\{\d+\}|\[\*\]", "", p)  # note marks
    p = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", p)  # links and images
    p = re.sub(r"<[^>]{1,40}>", "", p)
    p = p.replace("_", "").replace("\\", "")
    p = re.sub(r"\*+", "", p)
    p = re.sub(r"^\s*(#+|>|\|)\s*", "", p)
    p = re.sub(r"\s+", " ", p).strip()
    return re.sub(r" ?--+ ?", "--", p)


def is_prose(p):
    letters = sum(c.isalpha() for c in p)
    if letters < 2 or letters / len(p) < 0.5:
        return False
    if (len(p) < 400 and SHORT_NOTICE.search(p)) or NOTICE.search(p):
        return False
    return sum(c.isascii() for c in p) / len(p) >= 0.97


def clean_markdown(data):
    text = data.decode("utf-8", "replace")
    rule = re.search(r"^-{5,}\s*$", text, flags=re.M)
    if rule and rule.start() < 1500:  # front matter ends at a rule
        text = text[rule.end():]
    return [p for p in map(clean_paragraph, raw_paragraphs(text)) if is_prose(p)]


def clean_gutenberg(data):
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if m := GUTENBERG_START.search(text):
        text = text[m.end():]
    if m := GUTENBERG_SMALL_PRINT.search(text[:40000]):
        text = text[m.end():]
    if m := GUTENBERG_END.search(text):
        text = text[:m.start()]
    kept = []
    for p in filter(is_prose, map(clean_paragraph, raw_paragraphs(text))):
        # Title page, dedication and contents are short lines or capitals: begin at the first real paragraph.
        if not kept and (len(p) < 180 or sum(c.isupper() for c in p) / len(p) >= 0.15):
            continue
        if len(p) < 12 and re.fullmatch(r"[IVXLC0-9. ]+", p):  # a bare chapter number
            continue
        kept.append(p)
    return kept


def git(*args):
    run = subprocess.run(["git", *args], capture_output=True)
    if run.returncode:
        sys.exit(f"git {' '.join(args)} failed:\n{run.stderr.decode(errors='replace')}")
    return run.stdout


def read_book(repos, source, clone):
    """source: github:OWNER/NAME@COMMIT:PATH."""
    owner, name, commit, path = re.fullmatch(r"github:([^/]+)/([^@]+)@([0-9a-f]+):(.+)", source).groups()
    repo = repos / owner / name
    if not repo.exists():
        if not clone:
            sys.exit(f"{repo} does not exist: clone https://github.com/{owner}/{name} there, or add --clone")
        git("clone", "--quiet", "--bare", f"https://github.com/{owner}/{name}", str(repo))
    return git("-C", str(repo), "cat-file", "blob", f"{commit}:{path}")


def fingerprints(text):
    """Hashes of the long paragraphs, blind to case and punctuation, which differ between editions."""
    return {hashlib.md5(re.sub(r"\W+", "", p.lower()).encode()).digest() for p in text.split("\n\n") if len(p) >= 120}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--manifest", type=Path, default=Path(__file__).with_name("data_manifest.json"))
    ap.add_argument("--repos", type=Path, required=True, help="folder with the book repositories as OWNER/NAME")
    ap.add_argument("--clone", action="store_true", help="clone the repositories that are missing there")
    ap.add_argument("--out", type=Path, required=True, help="folder for A.txt, B.txt, val.txt")
    args = ap.parse_args()

    books = {stream: {} for stream in TEXT_STREAMS}
    for entry in json.loads(args.manifest.read_text(encoding="utf-8"))["books"]:
        data = read_book(args.repos, entry["source"], args.clone)
        clean = clean_markdown if entry["source"].endswith(".md") else clean_gutenberg
        text = "\n\n".join(clean(data))
        sha256 = hashlib.sha256(text.encode()).hexdigest()[:16]
        if sha256 != entry["sha256"]:
            sys.exit(f"{entry['title']}: cleaned text has hash {sha256}, the manifest says {entry['sha256']}. "
                     "Was a cleaning rule changed, or the manifest edited?")
        books[entry["stream"]][entry["title"]] = text

    held_out = set().union(*map(fingerprints, books["val"].values()))
    for stream in ("A", "B"):
        for title, text in books[stream].items():
            if held_out & fingerprints(text):
                sys.exit(f"{title} (stream {stream}) shares a paragraph with a held-out book")

    args.out.mkdir(parents=True, exist_ok=True)
    for stream, texts in books.items():
        write_books(args.out, stream, texts.values())
        print(f"{stream}: {len(texts)} books, {sum(map(len, texts.values())) / 1e6:.1f} M characters")


if __name__ == "__main__":
    main()
