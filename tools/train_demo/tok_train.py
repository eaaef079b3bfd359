#!/usr/bin/env python3
"""Clean text to tokenizer: a byte-level BPE with the pre-tokenizer and file layout of LLaMA-3, like BitNet 2B-4T's.

Small (4096 entries) because the embedding stays in bf16 while the layers are ternary: at 32,000 entries the embedding
of this model would be six times the size of all its layers.
"""
import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from common import BOS, EOS, SPECIAL_TOKENS, read_books

LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# The template of BitNet 2B-4T, but the generation prompt ends in "Assistant:" without a blank: in the training
# text the blank belongs to the next word ("Assistant:" + " Once"), and a token that is only a blank derails the model.
CHAT_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = message['role'] | capitalize + ': '+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
# Characters per book, so that no single book's names fill the vocabulary; more from the few children's books.
CHARS_PER_BOOK = {"A": 150_000, "B": 60_000}
PIECE = 15_000


def training_text(folder):
    """Pieces of the middle of every book."""
    for stream, limit in CHARS_PER_BOOK.items():
        for book in read_books(folder, stream):
            begin = max(0, (len(book) - limit) // 2)
            for i in range(begin, min(len(book), begin + limit), PIECE):
                yield book[i:min(i + PIECE, begin + limit)]


def train_bpe(pieces, vocab_size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    learned = vocab_size - len(SPECIAL_TOKENS)
    tok.train_from_iterator(pieces, trainers.BpeTrainer(
        vocab_size=learned, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    if tok.get_vocab_size() != learned:
        raise SystemExit(f"the text yields only {tok.get_vocab_size()} of {learned} tokens: "
                         "add text or lower --vocab-size")
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1",
                                      special_tokens=[(BOS, tok.token_to_id(BOS))])])
    return tok


def tokenizer_config(tok):
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "added_tokens_decoder": {
            str(tok.token_to_id(t)): {"content": t, **flags, "special": True} for t in SPECIAL_TOKENS},
        "bos_token": BOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "extra_special_tokens": {},
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def special_tokens_map():
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"bos_token": {"content": BOS, **flags}, "eos_token": {"content": EOS, **flags}}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--text", type=Path, required=True, help="folder with A.txt and B.txt")
    ap.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json and its two companions")
    ap.add_argument("--vocab-size", type=int, default=4096)
    args = ap.parse_args()

    tok = train_bpe(training_text(args.text), args.vocab_size)
    args.out.mkdir(parents=True, exist_ok=True)
    tok.save(str(args.out / "tokenizer.json"))
    (args.out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(tok), indent=2))
    (args.out / "special_tokens_map.json").write_text(json.dumps(special_tokens_map(), indent=2))
    print(tok.encode('Once upon a time there was a king.\n\n"Don\'t," said he.').tokens)


if __name__ == "__main__":
    main()
