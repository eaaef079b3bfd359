#!/usr/bin/env python3
"""Validation loss of an exported model as transformers computes it: the check on export, and the number to compare.

Loads either folder of export.py and predicts the held-out windows of encode.py, 2048 tokens each.
"""
import argparse
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=Path, required=True, help="demo-model or demo-model-bf16 of export.py")
    ap.add_argument("--tokens", type=Path, required=True, help="the .npz file of encode.py")
    ap.add_argument("--every", type=int, default=1, help="use every n-th window only")
    ap.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    ap.add_argument("--device", default="cuda")
    args = ap.parse_args()

    data = np.load(args.tokens)
    dtype = getattr(torch, args.dtype)
    lm = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="eager")
    lm = lm.to(args.device, dtype).eval()  # embedding and norms of a quantised checkpoint are loaded in its own type
    losses = defaultdict(list)  # by book
    with torch.no_grad():
        for window, book in zip(data["val"][::args.every], data["val_book"][::args.every]):
            ids = torch.from_numpy(window.astype(np.int64)).to(args.device)
            logits = lm(input_ids=ids[None, :-1], use_cache=False).logits[0].float()
            losses[int(book)].append(F.cross_entropy(logits, ids[1:]).item())
    every = [loss for of_book in losses.values() for loss in of_book]
    mean = sum(every) / len(every)
    print(f"{len(every)} windows: loss {mean:.4f} nats per token, perplexity {math.exp(mean):.2f}")
    for book, of_book in losses.items():
        print(f"  held-out book {book + 1} of the manifest: {sum(of_book) / len(of_book):.4f}")


if __name__ == "__main__":
    main()
