#!/usr/bin/env python3
"""Text and tokenizer to tokens.npz: the three training streams A, B, C and the validation windows.

A and B are the books, each closed by <|end_of_text|>. C retells A as conversations, so that the model knows the chat
template: an excerpt becomes the answer to a request for a story about the nouns that occur in it. Made by rule from
the same books, plus ten fixed exchanges of small talk.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read at import; the pool below already uses every core

import argparse
import random
import re
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from common import BOS, EOS, EOT, read_books

WINDOW = 2048  # tokens predicted per validation window: the model's context
VALIDATION_WINDOWS = 128
CHAT_SHARDS = 16  # one random seed each: part of the recipe, not the number of processes
NOUNS = frozenset("""
    king queen prince princess dragon giant witch fairy dwarf wolf fox bear lion cat dog horse mouse bird frog rabbit
    fish boy girl farmer miller soldier sailor shepherd hunter tailor merchant thief ship castle forest tree garden
    river island mountain sea cave well tower bridge ring sword crown treasure lamp mirror rose apple wizard robber
    knight captain pirate goblin mermaid owl goose pig cow sheep donkey monkey elephant tiger snake doctor baby
    grandmother teacher storm snow moon star house village school train doll clock""".split())
SMALL_TALK = (
    ("Hello!", "Hello! I am a little storyteller. Ask me for a story."),
    ("Hi", "Hello! Would you like to hear a story?"),
    ("Who are you?", "I am a little storyteller. I have read a great many old books, and I love to tell tales."),
    ("What is your name?", "My name is Tilly, and I tell stories."),
    ("Thank you.", "You are very welcome. Shall I tell you another story?"),
    ("Good night.", "Good night, and sweet dreams."),
    ("How are you?", "I am very well, thank you. Shall I tell you a story?"),
    ("What can you do?", "I can tell stories of kings and queens, of dragons and giants, and of children who go upon "
                         "adventures."),
    ("Good morning.", "Good morning! It is a fine day for a story."),
    ("Goodbye.", "Goodbye! Come back soon for another story."),
)
STORY_OPENING = re.compile(
    r"Once|There was once|There were once|There once|Long ago|Long, long ago|In the days|In a |There lived"
    r"|A long time ago")


def paragraphs(book):
    """Without index and table lines, which are mostly numbers."""
    def is_text(p):
        digits = sum(c.isdigit() for c in p)
        return p and not (len(p) > 25 and digits >= 3 and digits / len(p) > 0.06)
    return [p for p in book.split("\n\n") if is_text(p)]


def word_count(p):
    return len(p.split())


# Every random draw below is part of the recipe: another order of draws gives another stream C.

def take_excerpt(rng, pars, begin):
    """(end, words) of an excerpt of pars from begin that stops at a heading."""
    goal, words, end = rng.choice([120, 180, 250, 320]), 0, begin
    while end < len(pars) and words < goal and len(pars[end]) >= 12 and not pars[end].isupper():
        words += word_count(pars[end])
        end += 1
    return end, words


def ask_and_tell(rng, excerpt):
    """(request, answer) made of an excerpt."""
    answer = "\n\n".join(excerpt)
    count = Counter(w for w in re.findall(r"[a-z]+", answer.lower()) if w in NOUNS)
    themes = [("an " if w[0] in "aeiou" else "a ") + w for w, n in count.most_common() if n >= 2][:3]
    kind = rng.random()
    if STORY_OPENING.match(excerpt[0]) and kind < 0.5:
        request = rng.choice(["Tell me a story.", "Tell me a fairy tale.", "Please tell me a story.",
                              "Can you tell me a story?", "I want to hear a story."])
        if themes and rng.random() < 0.5:
            request = "Tell me a story about " + " and ".join(themes[:rng.randint(1, 2)]) + "."
    elif themes and kind < 0.75:
        *first, last = themes[:min(len(themes), rng.choice([1, 1, 2, 2, 3]))]
        listed = ", ".join(first) + " and " + last if first else last
        request = rng.choice(["Tell me a story about %s.", "Tell me about %s.", "Write a story about %s.",
                              "Please tell me a tale of %s."]) % listed
    elif len(excerpt) >= 3 and len(excerpt[0]) < 700:
        request = rng.choice(["Continue this story: ", "Go on with this story: ", "What happened next? "]) + excerpt[0]
        answer = "\n\n".join(excerpt[1:])
    else:
        request = rng.choice(["Tell me a story.", "Tell me another story.", "Read to me."])
    return request, answer


def continuation(pars):
    """The next 150 words or so, up to a heading; None when there is too little."""
    taken, words = [], 0
    for p in pars:
        if p.isupper():
            break
        taken.append(p)
        words += word_count(p)
        if words > 150:
            break
    return "\n\n".join(taken) if words > 40 else None


def turn(request, answer):
    return f"User: {request}{EOT}Assistant: {answer}{EOT}"


def conversations(rng, books):
    made = []
    for book in books:
        pars = paragraphs(book)
        i = 0
        while i < len(pars) - 2:
            if len(pars[i]) < 80 or not (pars[i][0].isupper() or pars[i][0] in "\"'"):
                i += 1
                continue
            end, words = take_excerpt(rng, pars, i)
            if words < 60:
                i = end + 1
                continue
            text = turn(*ask_and_tell(rng, pars[i:end]))
            following = pars[end:end + 6]
            if rng.random() < 0.2 and following and (more := continuation(following)):
                text += turn(rng.choice(["What happened next?", "And then?", "Go on.", "Please go on."]), more)
            made.append(text)
            if rng.random() < 0.10:
                made.append(turn(*rng.choice(SMALL_TALK)))
            i = end
    rng.shuffle(made)
    return made


class Encoder:
    """One per process: a tokenizer does not travel well between processes."""

    def __init__(self, tokenizer_file):
        self.tok = Tokenizer.from_file(str(tokenizer_file))
        self.bos = self.tok.token_to_id(BOS)

    def book(self, text):
        """(tokens, offsets of the paragraphs at which a training sequence may begin)."""
        pars = paragraphs(text)
        pieces = [p + "\n\n" for p in pars[:-1]] + pars[-1:]
        encoded = [e.ids for e in self.tok.encode_batch_fast(pieces, add_special_tokens=False)]
        offsets = np.cumsum([0] + [len(ids) for ids in encoded[:-1]])
        starts = [o for o, p in zip(offsets, pars) if len(p) >= 60]
        return np.concatenate([np.array(ids, np.uint16) for ids in encoded]), np.array(starts, np.int64)

    def chat(self, seed, books):
        """(tokens, offsets just behind each conversation's BOS)."""
        tokens, starts = [], []
        for text in conversations(random.Random(seed), books):
            starts.append(len(tokens) + 1)
            tokens += [self.bos] + self.tok.encode(text, add_special_tokens=False).ids
        return np.array(tokens, np.uint16), np.array(starts, np.int64)


def start_worker(tokenizer_file):
    global encoder
    encoder = Encoder(tokenizer_file)


def encode_book(text):
    return encoder.book(text)


def encode_chat(job):
    return encoder.chat(*job)


def join(parts, between):
    """One stream of (tokens, starts) parts; `between` follows every part."""
    tokens, starts, n = [], [], 0
    for part, part_starts in parts:
        tokens += [part, np.array(between, np.uint16)]
        starts.append(part_starts + n)
        n += len(part) + len(between)
    return np.concatenate(tokens), np.concatenate(starts)


def validation_windows(books, bos):
    """Up to 128 rows of BOS + 2048 tokens, spread evenly over the books, and the book each is from."""
    rows, row_book = [], []
    for b, (tokens, _) in enumerate(books):
        for i in range(0, len(tokens) - WINDOW, WINDOW - 1):
            rows.append(np.concatenate([np.array([bos], np.uint16), tokens[i:i + WINDOW]]))
            row_book.append(b)
    if not rows:
        raise SystemExit(f"the held-out books are shorter than one window of {WINDOW} tokens")
    chosen = np.linspace(0, len(rows) - 1, min(VALIDATION_WINDOWS, len(rows))).round().astype(int)
    return np.stack([rows[i] for i in chosen]), np.array([row_book[i] for i in chosen])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--text", type=Path, required=True, help="folder with A.txt, B.txt, val.txt")
    ap.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    ap.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    args = ap.parse_args()

    tok = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    bos, eos = tok.token_to_id(BOS), tok.token_to_id(EOS)
    a, b, val = (read_books(args.text, stream) for stream in ("A", "B", "val"))
    with Pool(initializer=start_worker, initargs=(args.tokenizer / "tokenizer.json",)) as pool:
        jobs = {"A": pool.map_async(encode_book, a, chunksize=2),
                "B": pool.map_async(encode_book, b, chunksize=2),
                "C": pool.map_async(encode_chat, [(s, a[s::CHAT_SHARDS]) for s in range(CHAT_SHARDS)], chunksize=1)}
        streams = {name: join(job.get(), [] if name == "C" else [eos, bos]) for name, job in jobs.items()}
        windows, window_book = validation_windows(pool.map(encode_book, val), bos)

    arrays = {"val": windows, "val_book": window_book, "bos": bos, "vocab_size": tok.get_vocab_size()}
    for name, (tokens, starts) in streams.items():
        arrays |= {name: tokens, f"{name}_starts": starts}
        print(f"{name}: {len(tokens)} tokens, {len(starts)} starts")
    text_bytes = sum(len(book.encode()) for book in a + b)
    print(f"{len(windows)} validation windows, "
          f"{text_bytes / (len(streams['A'][0]) + len(streams['B'][0])):.3f} bytes per token")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(args.out, **arrays)


if __name__ == "__main__":
    main()
