#!/usr/bin/env python3
"""Compares our tokenizer with Hugging Face's `tokenizers` on random texts.

    differential.py PROGRAM FOLDER [--strings N] [--seed S]

PROGRAM is tokenize_lines; FOLDER holds tokenizer.json files (NAME.json or NAME.json.gz; golden cases
beside them are left alone). For every text the ids with and without special tokens, the decoded text
and the text as a stream shows it must be equal; then random ids are decoded. Exits with 77 (skipped)
where the package is absent.
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

try:
    import tokenizers
except ImportError:
    print("[skipped] the Python package tokenizers is not installed")
    sys.exit(77)

SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
ODD = "\x00\x01\x1b\x7f\xad\u200b\u200c\u200d\u200e\ufeff\ufffd\uffff\ue000\U000f0000\U0010ffff"
EMOJI = "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea\u2764\ufe0f\U0001f44d\U0001f3fd"
MARKS = "\u0300\u0301\u0316\u0323\u0327\u0345\u3099\u05b0\u064b\u094d\u0e48\u1dc4\u20dd\u0f71"
BASES = "aeoAEOqs\u00e9\u1e69\u212b\ufb01\u2460\u00bd\u1100\u1161\u11a8\uac00\uac01\u0958\u0344\ufdfa\u2126"
WORDS = ("the of and in Once upon a time def return print ( ) { } == != 1234567 3.14159 don't I'll "
         "THEY'RE naive caf\u00e9 Stra\u00dfe \u4e2d\u6587\u5206\u8bcd \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 "
         "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea "
         "\u0939\u093f\u0928\u094d\u0926\u0940 \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac "
         "\u0661\u0662\u0663 \u2167 \u2581 \u2581\u2581 \u0120 <0x41> <0xE4> </s> <s> [INST] ## @@ 's 'S '\u017f").split(" ")

# The libraries of Debian 12 know Unicode 14, and younger characters may differ there.
UNICODE = unicodedata if unicodedata.unidata_version <= "14.0.0" else unicodedata.ucd_3_2_0
KNOWN = [c for c in map(chr, range(0x110000))
         if not 0xD800 <= ord(c) <= 0xDFFF and UNICODE.category(c) not in ("Cn", "Co")]


class Texts:
    """Hostile mixtures; `contents` are the tokenizer's own added tokens."""

    def __init__(self, rng, contents):
        self.rng, self.contents = rng, contents or ["<s>"]

    def piece(self):
        rng = self.rng
        kind = rng.randrange(12)
        if kind == 0:
            return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 6)))
        if kind == 1:
            return " " * rng.randint(1, 20)
        if kind == 2:
            return rng.choice(BASES) + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 5)))
        if kind == 3:
            return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 5)))
        if kind == 4:
            token = rng.choice(self.contents)
            return rng.choice([token, token, token[:-1], " " + token, token + " ", token.upper()])
        if kind == 5:
            return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))
        if kind == 6:
            return rng.choice(ODD)
        if kind == 7:
            return "".join(rng.choice(KNOWN) for _ in range(rng.randint(1, 3)))
        if kind == 8:
            return "".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 8)))
        if kind == 9:
            return rng.choice(WORDS) * rng.randint(1, 3)
        return " " + rng.choice(WORDS)

    def text(self):
        return "".join(self.piece() for _ in range(self.rng.randint(0, 12)))


def load(path):
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")
    with opened as file:
        return file.read().decode()


def expected(tokenizer, question):
    result = {}
    ids = question
    if isinstance(question, str):
        ids = tokenizer.encode(question, add_special_tokens=False).ids
        result["ids"] = ids
        result["special_ids"] = tokenizer.encode(question).ids
    result["decoded"] = tokenizer.decode(ids, skip_special_tokens=False)
    # Not skip_special_tokens: tokenizers 0.23 does not find a special token that its normalizer
    # changed (LLaMA-2's "<s>" where it is marked as normalized) and shows it.
    special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    shown = [id for id in ids if id not in special]
    result["shown"] = tokenizer.decode(shown, skip_special_tokens=False)
    return result


def compare(program, path, n_strings, seed):
    source = load(path)
    tokenizer = tokenizers.Tokenizer.from_str(source)
    contents = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    rng = random.Random(f"{seed} {path.name}")
    texts = Texts(rng, contents)
    n_ids = tokenizer.get_vocab_size()
    questions = [texts.text() for _ in range(n_strings)]
    questions += [[rng.randrange(n_ids) for _ in range(rng.randint(0, 9))]
                  for _ in range(n_strings // 10)]
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "tokenizer.json")
        plain.write_text(source)
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        ours = subprocess.run([program, str(plain)], input=lines.encode(), capture_output=True)
    if ours.returncode != 0:
        print(f"{path.name}: {ours.stderr.decode()}")
        return 1
    n_wrong = 0
    for question, line in zip(questions, ours.stdout.decode().split("\n")[:-1], strict=True):
        got = json.loads(line)
        got["decoded"] = bytes(got["decoded"]).decode(errors="replace")
        want = expected(tokenizer, question)
        for key, value in want.items():
            if got[key] == value:
                continue
            n_wrong += 1
            if n_wrong <= 5:
                print(f"{path.name}: {key} of {question!r}\n  expected {value!r}\n  got      {got[key]!r}")
    print(f"{path.name}: {len(questions)} compared, {n_wrong} differ")
    return n_wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strings", type=int, default=7200, help="texts for each file")
    parser.add_argument("--seed", type=int, default=None)
    flags = parser.parse_args()
    seed = flags.seed if flags.seed is not None else int.from_bytes(os.urandom(4), "big")
    paths = sorted(p for p in flags.folder.iterdir()
                   if p.name.endswith((".json", ".json.gz")) and "_cases." not in p.name)
    print(f"tokenizers {tokenizers.__version__}, seed {seed}")
    n_wrong = sum(compare(flags.program, path, flags.strings, seed) for path in paths)
    sys.exit(1 if n_wrong or not paths else 0)


if __name__ == "__main__":
    main()
