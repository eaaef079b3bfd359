"""What the data scripts and the training script agree on: special tokens, the text streams, one file format.

No torch here: the tokenizer and encoding steps run on a machine that has none.
"""
from pathlib import Path

BOS, EOS, EOT = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
SPECIAL_TOKENS = (BOS, EOS, EOT)  # the last three ids of the vocabulary, in this order

# A: children's books and fairy tales, B: novels, val: books held out of both. (C, the chat stream, is made from A.)
TEXT_STREAMS = ("A", "B", "val")

# A NUL line cannot occur in a cleaned book, so it can stand between two of them.
BOOK_SEPARATOR = "\n\x00\n"


def write_books(folder, stream, books):
    (Path(folder) / f"{stream}.txt").write_text(BOOK_SEPARATOR.join(books), encoding="utf-8")


def read_books(folder, stream):
    return (Path(folder) / f"{stream}.txt").read_text(encoding="utf-8").split(BOOK_SEPARATOR)
