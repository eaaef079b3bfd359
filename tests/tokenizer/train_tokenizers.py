#!/usr/bin/env python3
"""Makes tests/data/tokenizers: small tokenizers with the pipelines of well-known models, and what
Hugging Face's `tokenizers` does with some texts.

    train_tokenizers.py TEXT_FILE... -o FOLDER

The vocabularies are trained on the given texts; the pipelines (normalizer, pre-tokenizer, decoder,
post-processor, flags of the model) are those of the published tokenizer.json files.
"""
import argparse
import gzip
import json
import random
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from differential import Texts, expected

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL = ["<unk>", "<s>", "</s>"]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def added(id, content, special=True, normalized=False, lstrip=False, rstrip=False, single_word=False):
    return {"id": id, "content": content, "single_word": single_word, "lstrip": lstrip,
            "rstrip": rstrip, "normalized": normalized, "special": special}


def sequence(key, members):
    return {"type": "Sequence", key: members}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def byte_level(use_regex=True, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True,
            "use_regex": use_regex}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def bos_template(token, id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}}


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPEND = sequence("normalizers", [{"type": "Prepend", "prepend": "\u2581"}, REPLACE])
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
DECODERS = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]


def train(pre_tokenizer, lines, size, special_tokens, alphabet=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special_tokens, show_progress=False,
                                  initial_alphabet=list(alphabet))
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())["model"]


def sentencepiece(lines, size, **flags):
    """A vocabulary as SentencePiece makes them: characters and runs of spaces, bytes behind control."""
    tokens = CONTROL + (BYTES if flags["byte_fallback"] else [])
    model = train(pre_tokenizers.Metaspace(prepend_scheme="always"), lines, size, tokens)
    space = "\u2581"
    for n in (1, 2, 4):  # Metaspace trains no runs of spaces, SentencePiece does
        model["merges"].append([space * n, space * n])
        model["vocab"][space * 2 * n] = len(model["vocab"])
    return model | {"unk_token": "<unk>"} | flags


def byte_level_bpe(lines, size, special_tokens, **flags):
    model = train(pre_tokenizers.ByteLevel(add_prefix_space=False), lines, size, special_tokens,
                  pre_tokenizers.ByteLevel.alphabet())
    return model | flags


def tokenizer(model, added_tokens, normalizer, pre_tokenizer, decoder, post_processor=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
            "decoder": decoder, "model": model}


def make_all(lines):
    control = [added(id, token) for id, token in enumerate(CONTROL)]
    normalized = [added(id, token, normalized=True) for id, token in enumerate(CONTROL)]
    bos = bos_template("<s>", 1)
    legacy = sequence("decoders", DECODERS + [STRIP])

    pieces = sentencepiece(lines, 700, byte_fallback=True, fuse_unk=True)
    n = len(pieces["vocab"])
    strings = pieces | {"merges": [" ".join(pair) for pair in pieces["merges"]]}
    # 1bitLLM, LLaMA-2, Mistral 7B v0.1, TinyLlama
    yield "llama2", tokenizer(strings, control, PREPEND, None, legacy, bos)
    # older files of the same: control tokens are looked for in normalised text
    yield "llama2-old", tokenizer(strings, normalized + [added(n, "<pad>", normalized=True)], PREPEND, None,
                                  legacy, bos)
    # Phi-3: chat tokens behind LLaMA-2's vocabulary swallow white space
    yield "phi3", tokenizer(strings, control + [added(n, "<|endoftext|>"), added(n + 1, "<|user|>", rstrip=True),
                                                added(n + 2, "<|end|>", rstrip=True)], PREPEND, None, legacy, bos)
    # Mistral v0.3 and LLaMA-2 as newer converters write it
    yield "mistral", tokenizer(pieces, control + [added(n, "[INST]"), added(n + 1, "[/INST]")], None,
                               metaspace("first", False), legacy, bos)
    # Gemma: no space in front, runs of spaces are tokens
    yield "gemma", tokenizer(pieces, control + [added(n, "\n\n", special=False)], REPLACE,
                             {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                              "invert": False}, sequence("decoders", DECODERS), bos)
    unknown = sentencepiece(lines, 400, byte_fallback=False, fuse_unk=True)
    yield "metaspace", tokenizer(unknown, control, {"type": "NFKC"},
                                 {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
                                 metaspace("always", True))
    yield "metaspace-unk", tokenizer(unknown | {"fuse_unk": False}, [], None, metaspace("first", True), None)

    decoder = byte_level(add_prefix_space=True)
    model = byte_level_bpe(lines, 700, ["<|endoftext|>"])
    n = len(model["vocab"])
    yield "gpt2", tokenizer(model, [added(0, "<|endoftext|>")], None, byte_level(), decoder, byte_level())
    yield "neox", tokenizer(
        model, [added(0, "<|endoftext|>")] + [added(n + i, " " * (8 - i), special=False, normalized=True)
                                              for i in range(7)],
        {"type": "NFC"}, byte_level(), decoder, byte_level())
    yield "llama3", tokenizer(
        model | {"ignore_merges": True}, [added(0, "<|endoftext|>"), added(n, "<|begin_of_text|>")], None,
        sequence("pretokenizers", [split(LLAMA3), byte_level(use_regex=False)]), decoder,
        sequence("processors", [byte_level(), bos_template("<|begin_of_text|>", n)]))
    yield "qwen2", tokenizer(
        model | {"unk_token": None, "fuse_unk": False, "byte_fallback": False},
        [added(0, "<|endoftext|>"), added(n, "<|im_start|>"), added(n + 1, "<|im_end|>"),
         added(n + 2, "<tool_call>", special=False)],
        {"type": "NFC"}, sequence("pretokenizers", [split(QWEN2), byte_level(use_regex=False)]), decoder,
        byte_level())
    yield "falcon3", tokenizer(
        model, [added(0, "<|endoftext|>"), added(n, ">>QUESTION<<"), added(n + 1, "<|pad|>")], None,
        sequence("pretokenizers", [{"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                                   {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")]),
        decoder, byte_level())
    yield "starcoder", tokenizer(
        model, [added(0, "<|endoftext|>"), added(n, "<w>", single_word=True, special=False),
                added(n + 1, "<l>", lstrip=True)],
        {"type": "NFD"}, sequence("pretokenizers", [{"type": "Digits", "individual_digits": True},
                                                    byte_level(add_prefix_space=True)]), decoder, byte_level())
    yield "alphabet", tokenizer(model, [], sequence("normalizers", [{"type": "NFKD"}, {"type": "ByteLevel"}]), None,
                                decoder)


def cases(tree, name):
    tokenizer = Tokenizer.from_str(json.dumps(tree))
    rng = random.Random(name)
    texts = Texts(rng, [token["content"] for token in tree["added_tokens"]])
    ids = [[rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 9))] for _ in range(20)]
    questions = ["", " ", "Once upon a time", " Once upon a time", "\u2581", "1234567", "Hello<s> world"]
    for question in questions + [texts.text() for _ in range(40)] + ids:
        if isinstance(question, str):
            yield {"text": question} | expected(tokenizer, question)
        else:
            yield {"ids": question} | expected(tokenizer, question)


def write(path, data):
    with gzip.GzipFile(path, "wb", mtime=0) as file:  # the same bytes every time
        file.write((json.dumps(data, ensure_ascii=False, indent=0) + "\n").encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("-o", dest="folder", type=Path, required=True)
    flags = parser.parse_args()
    lines = [line for path in flags.texts for line in path.read_text().splitlines()]
    for name, tree in make_all(lines):
        write(flags.folder / f"{name}_tokenizer.json.gz", tree)
        write(flags.folder / f"{name}_cases.json.gz",
              {"made_with": f"tokenizers {tokenizers.__version__}", "cases": list(cases(tree, name))})


if __name__ == "__main__":
    main()
