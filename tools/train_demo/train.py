#!/usr/bin/env python3
"""Tokens to master weights: quantisation-aware training of the demo model on one GPU.

The learning rate follows the share of the run that is done, and the run is measured in seconds by default: on
any GPU it ends on time with a rate of zero. Give --steps instead to see as many tokens as the shipped model did.
"""
import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from model import DemoModel, rope_tables

STREAMS = ("A", "B", "C")
EVALUATE_EVERY_S = 60
REPORT_EVERY = 100  # steps; reading the loss waits for the GPU, so not at every step


def parse_args():
    def mix(text):
        shares = [float(share) for share in text.split(",")]
        if len(shares) != len(STREAMS):
            raise argparse.ArgumentTypeError(f"needs {len(STREAMS)} shares, got '{text}'")
        return shares

    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokens", type=Path, required=True, help="the .npz file of encode.py")
    ap.add_argument("--out", type=Path, required=True, help="folder for master.safetensors and train_info.json")
    length = ap.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=507.35)
    length.add_argument("--steps", type=int, help="the shipped model took 7054")
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--seq", type=int, default=2048)
    ap.add_argument("--lr", type=float, default=3e-3, help="at the end of the warm-up")
    ap.add_argument("--warmup", type=int, default=300, help="steps")
    ap.add_argument("--weight-decay", type=float, default=0.1, help="of the ternary matrices, in the first half")
    ap.add_argument("--mix1", type=mix, default=[0.30, 0.65, 0.05], help="shares of the streams A,B,C")
    ap.add_argument("--mix2", type=mix, default=[0.45, 0.35, 0.20], help="the same in the second stage")
    ap.add_argument("--stage2", type=float, default=0.65, help="share of the run at which the second stage begins")
    ap.add_argument("--seed", type=int, default=1234)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--no-compile", action="store_true", help="run without torch.compile (slow; for a CPU or to debug)")
    return ap.parse_args()


class Batches:
    """Sequences that begin with BOS at a random paragraph of a random stream. Everything stays on the device."""

    def __init__(self, data, batch, seq, device):
        self.batch, self.device, self.bos = batch, device, int(data["bos"])
        self.offsets = torch.arange(seq, device=device)
        self.stream_tokens = {name: len(data[name]) for name in STREAMS}
        self.seen = torch.zeros(len(STREAMS), dtype=torch.long, device=device)
        tokens, self.starts, begin = [], [], 0
        for name in STREAMS:
            starts = data[f"{name}_starts"]
            starts = starts[starts < len(data[name]) - seq - 1]
            if not len(starts):
                raise SystemExit(f"stream {name} is too short for sequences of {seq} tokens: add text or lower --seq")
            self.starts.append(torch.from_numpy(starts + begin).to(device))
            tokens.append(data[name])
            begin += len(data[name])
        self.tokens = torch.from_numpy(np.concatenate(tokens).astype(np.int32)).to(device)

    def draw(self, cumulative_mix):
        """(ids, targets), each [batch, seq]."""
        draw = torch.rand(self.batch, device=self.device) * cumulative_mix[-1]
        stream = torch.bucketize(draw, cumulative_mix).clamp(max=len(STREAMS) - 1)
        start = torch.zeros(self.batch, dtype=torch.long, device=self.device)
        for i, starts in enumerate(self.starts):
            candidate = starts[torch.randint(0, len(starts), (self.batch,), device=self.device)]
            start = torch.where(stream == i, candidate, start)
            self.seen[i] += (stream == i).sum()
        target = self.tokens[start[:, None] + self.offsets].long()
        bos = torch.full((self.batch, 1), self.bos, device=self.device)
        return torch.cat([bos, target[:, :-1]], dim=1), target


def main():
    args = parse_args()
    device = torch.device(args.device)
    process_start = time.time()

    def log(*what):
        print(f"[{time.time() - process_start:6.1f}]", *what, flush=True)

    data = np.load(args.tokens)
    vocab_size = int(data["vocab_size"])
    torch.manual_seed(args.seed)
    model = DemoModel(vocab_size).to(device)
    if not args.no_compile:
        model.compile_parts()
    ternary = model.ternary_parameters()
    ternary_ids = {id(p) for p in ternary}
    others = [p for p in model.parameters() if id(p) not in ternary_ids]
    ternary_count = sum(p.numel() for p in ternary)
    count = sum(p.numel() for p in model.parameters())
    log(f"{count} parameters, {ternary_count} of them ternary")

    cos, sin = rope_tables(args.seq, device)
    # Two passes over noise: compile before the clock starts.
    noise = torch.randint(0, vocab_size, (args.batch, args.seq), device=device)
    for _ in range(2):
        model(noise, noise, cos, sin).backward()
    model.zero_grad(set_to_none=True)

    batches = Batches(data, args.batch, args.seq, device)
    mixes = [torch.tensor(mix, device=device).cumsum(0) for mix in (args.mix1, args.mix2)]
    validation = torch.from_numpy(data["val"][:, :args.seq + 1].astype(np.int64)).to(device)
    if len(validation) < args.batch:
        raise SystemExit(f"{len(validation)} validation windows do not fill a batch of {args.batch}: lower --batch")

    def evaluate():
        # Full batches only, and with gradients on: other shapes or modes would be compiled again, inside the run.
        losses = [model(window[:, :-1].contiguous(), window[:, 1:].contiguous(), cos, sin).item()
                  for window in validation.split(args.batch) if len(window) == args.batch]
        return sum(losses) / len(losses)

    optimizer = torch.optim.AdamW(
        [{"params": ternary, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    loss_sum, loss_count = torch.zeros((), device=device), 0
    step, history, evaluations, next_evaluation = 0, [], [], EVALUATE_EVERY_S
    log("training for", f"{args.steps} steps" if args.steps else f"{args.seconds:.0f} s", batches.stream_tokens)
    start = last_report = time.time()
    while True:
        done = step / args.steps if args.steps else (time.time() - start) / args.seconds
        if done >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / args.warmup) * (1 - done)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.param_groups[0]["weight_decay"] = args.weight_decay if done < 0.5 else 0.0

        ids, target = batches.draw(mixes[0 if done < args.stage2 else 1])
        loss = model(ids, target, cos, sin)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss_sum += loss.detach()
        loss_count += 1
        step += 1

        if step % REPORT_EVERY == 0 or step == 20:
            mean_loss, now = (loss_sum / loss_count).item(), time.time()
            tokens_per_s = loss_count * args.batch * args.seq / (now - last_report)
            history.append((step, round(now - start, 1), round(mean_loss, 4), round(lr, 6)))
            log(f"step {step} loss {mean_loss:.4f} grad norm {grad_norm.item():.3f} lr {lr:.5f} "
                f"{tokens_per_s / 1e6:.2f} M tokens/s")
            if now - start > next_evaluation:
                next_evaluation += EVALUATE_EVERY_S
                evaluations.append((step, round(now - start, 1), round(evaluate(), 4)))
                log(f"validation loss {evaluations[-1][2]}")
            loss_sum.zero_()
            loss_count, last_report = 0, time.time()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.time() - start

    validation_loss = evaluate()
    evaluations.append((step, round(seconds, 1), round(validation_loss, 4)))
    tokens = step * args.batch * args.seq
    epochs = {name: round(n * args.seq / batches.stream_tokens[name], 2)
              for name, n in zip(STREAMS, batches.seen.tolist())}
    log(f"{step} steps, {tokens / 1e6:.1f} M tokens, validation loss {validation_loss:.4f}, epochs {epochs}")

    args.out.mkdir(parents=True, exist_ok=True)
    save_file(model.hf_state_dict(), args.out / "master.safetensors")
    info = {
        "args": {name: value for name, value in vars(args).items() if name not in ("tokens", "out")},
        "parameters": count, "ternary_parameters": ternary_count,
        "steps": step, "seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds,
        "stream_tokens": batches.stream_tokens, "epochs": epochs,
        "validation_loss": validation_loss, "validation_perplexity": math.exp(validation_loss),
        "evaluations": evaluations, "history": history,
        "torch": torch.__version__, "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }
    (args.out / "train_info.json").write_text(json.dumps(info, indent=1))


if __name__ == "__main__":
    main()
