#!/usr/bin/env python3
"""What the KV types cost in accuracy on a whole model, with and without outlier channels.

Runs a `.tmac2` model teacher-forced in numpy, in double precision. Attention over `i16` and `i8` has the same bits as
the kernels (docs/numerics.md, "Attention in integers"). `f16` rounds keys and values to half precision, `f32` does not;
both use softmax in double precision. Prints perplexity, its change against `f32` without outliers, and drift, the
relative L2 distance of all logits to those.

Outliers: channels of K are multiplied by a factor and those of q divided by it, channels of V are multiplied and the
result of attention divided. The model's function stays the same; only what the cache rounds changes.

Needs numpy (`pip install numpy`). 13 runs over 2,046 tokens of the demo model take 2 minutes of one core.
"""

import argparse
import json
import pathlib

import numpy as np

F32 = np.float32
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CHUNK = 128
PARTIALS = 16
# RoPE pair p of a head is its dimensions p and p + head_dim / 2.
# Scenario: factor of two RoPE pairs of K, factor of two channels of V.
SCENARIOS = {"plain": (1, 1), "K x20": (20, 1), "K x20, V x20": (20, 20), "K x100": (100, 1)}


class Model:
    """A `.tmac2` file (docs/format.md). A ternary matrix is a pair: codes [in, out] and scale."""

    def __init__(self, path):
        data = np.fromfile(path, np.uint8)
        meta = json.loads(bytes(data[32 : 32 + int(data[16:24].view(np.uint64)[0])]))
        self.arch = meta["architecture"]
        raw = {s["name"]: self._array(s, data[s["offset"] :][: s["bytes"]]) for s in meta["sections"]}
        self.tensors = {n: (t.T.astype(float), raw[n + ".scale"]) if n + ".scale" in raw else t for n, t in raw.items()}

    @staticmethod
    def _array(section, data):
        shape = section["shape"]
        if section["dtype"] == "t2":
            codes = (data.reshape(shape[0], -1, 1) >> np.array([0, 2, 4, 6], np.uint8)) & 3
            return np.array([0, 1, 0, -1], np.int8)[codes.reshape(shape[0], -1)[:, : shape[1]]]
        if section["dtype"] == "bf16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(F32).reshape(shape).astype(float)
        dtype = {"f32": F32, "f16": np.float16, "u8": np.uint8}[section["dtype"]]
        return data.view(dtype).reshape(shape).astype(float)

    def linear(self, x, name, int8):
        matrix, scale = self.tensors[name]
        if not int8:
            return x @ matrix * scale
        x = x.astype(F32)
        s = F32(1) / np.maximum(np.abs(x).max(-1, keepdims=True), F32(1e-5)) * F32(127)
        return np.rint(x * s).astype(float) @ matrix / s * scale

    def norm(self, x, name):
        if name not in self.tensors:  # a sub-norm that the model does not have
            return x
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.arch["norm_eps"]) * self.tensors[name]

    def forward(self, ids, attend, int8):
        """Logits [n, vocab]. attend(q, k, v) has [heads, n, head_dim] and [kv_heads, n, head_dim]."""
        a = self.arch
        n, hd = len(ids), a["head_dim"]
        angle = np.outer(np.arange(n), self.tensors["rope.inv_freq"])
        cos, sin = np.cos(angle), np.sin(angle)

        def heads(x):
            return x.reshape(n, -1, hd).transpose(1, 0, 2)

        def rope(x):
            x, y = np.split(x, 2, axis=-1)
            return np.concatenate([x * cos - y * sin, y * cos + x * sin], -1)

        x = self.tensors["embedding"][ids]
        for i in range(a["layers"]):
            at = f"layers.{i}."
            h = self.norm(x, at + "attn_norm")
            q, k, v = (heads(self.linear(h, at + m, int8)) for m in "qkv")
            y = attend(rope(q), rope(k), v).transpose(1, 0, 2).reshape(n, -1)
            x = x + self.linear(self.norm(y, at + "attn_sub_norm"), at + "o", int8)
            h = self.norm(x, at + "ffn_norm")
            gate = self.linear(h, at + "gate", int8)
            gate = np.maximum(gate, 0) ** 2 if a["act"] == "relu2" else gate / (1 + np.exp(-gate))
            y = gate * self.linear(h, at + "up", int8)
            x = x + self.linear(self.norm(y, at + "ffn_sub_norm"), at + "down", int8)
        return self.norm(x, "final_norm") @ self.tensors["embedding" if a["tied_head"] else "head"].T


def softmax_attention(q, k, v, kv):
    """One kv head in double precision: q [group, n, hd], k and v [n, hd]."""
    if kv == "f16":
        k, v = (x.astype(F32).astype(np.float16).astype(float) for x in (k, v))
    score = q @ k.T / np.sqrt(k.shape[1])
    score[:, ~np.tri(len(k), dtype=bool)] = -np.inf
    weight = np.exp(score - score.max(-1, keepdims=True))
    return weight @ v / weight.sum(-1, keepdims=True)


def fma(a, b, c):
    # The product is exact. The sum is rounded twice, which changes about one result in 2^29.
    return (np.multiply(a, b, dtype=float) + c).astype(F32)


def turn(x):
    """Walsh-Hadamard butterfly of the last dimension, in blocks, not normalised."""
    x = x.astype(F32)
    hd = x.shape[-1]
    width = 1
    while width < (hd & -hd):
        pair = x.reshape(*x.shape[:-1], -1, 2, width)
        a, b = pair[..., 0, :], pair[..., 1, :]
        x = np.stack([a + b, a - b], -2).reshape(x.shape)
        width *= 2
    return x


def row_codes(x, largest):
    """Codes of keys or queries and their units."""
    amax = np.maximum(np.abs(x).max(-1, keepdims=True), F32(1e-30))
    return np.rint(x * (largest / amax)).astype(float), amax / largest


def value_codes(x, largest):
    """Codes of values, log2 of their units, and 1 / unit."""
    needed = np.maximum(np.abs(x).max(-1, keepdims=True) / largest, F32(2.0**-40))
    mantissa, exponent = np.frexp(needed)  # mantissa in [1/2, 1)
    eighths = np.append(np.exp2(np.arange(8) / 8).astype(F32), F32(2))
    eighth = np.searchsorted(eighths, mantissa * F32(2))
    log2_unit = (exponent - 1 + eighth / 8).astype(F32)
    per_unit = F32(1) / np.ldexp(eighths[eighth], exponent - 1)
    return np.rint(x * per_unit).astype(float), log2_unit, per_unit


def low_digit(code):
    return code - 256 * np.floor((code + 128) / 256)


def weights_of(score, maximum):
    """2^(score - maximum)."""
    u = np.maximum(fma(score, F32(2.0**-7), (F32(127) - maximum) * F32(2.0**-7)), F32(0))
    t = fma(u, F32(128), F32(12582785))
    r = fma(u, F32(128), F32(12582785) - t)
    p = fma(fma(F32(0.05500895157456398), r, F32(0.2422110140323639)), r, F32(0.6932829022407532))
    p = fma(p, r, F32(1))
    return (p.view(np.uint32) + (t.view(np.uint32) << np.uint32(23))).view(F32)


def integer_attention(q, k, v, kv):
    """One kv head as docs/numerics.md defines it. Integer sums are exact in double precision."""
    n, hd = k.shape
    block = hd & -hd
    i16 = kv == "i16"
    largest, unit = (F32(32639), 256) if i16 else (F32(127), 1)
    qc, q_unit = row_codes(turn(q), F32(32639))
    kc, k_unit = row_codes(turn(k), largest)
    vc, v_log2, v_per_unit = value_codes(turn(v), largest)
    factor = q_unit * (F32(np.log2(np.e) / np.sqrt(hd)) / F32(block)) * F32(unit)

    top, weight_sum, total = F32(-np.inf), F32(0), np.zeros(q.shape, F32)
    for begin in range(0, n, CHUNK):
        here = slice(begin, min(begin + CHUNK, n))
        # (q k - ql kl) / 256 is 256 qh kh + qh kl + ql kh.
        t = qc @ kc[here].T
        if i16:
            t = (t - low_digit(qc) @ low_digit(kc[here]).T) / 256
        x = fma(t.astype(F32) * k_unit[here].T, factor, v_log2[here].T)
        x[:, np.arange(n)[:, None] < np.arange(n)[here]] = -np.inf
        maximum = np.ceil(x.max(-1, keepdims=True))
        seen = np.isfinite(maximum)  # rows before the chunk see none of it
        w = weights_of(x, np.where(seen, maximum, F32(0)))
        w[np.isneginf(x)] = 0

        partial = np.zeros((*w.shape[:-1], PARTIALS), F32)
        for j in range(w.shape[-1]):
            at = j % PARTIALS
            partial[..., at] = fma(w[..., j], v_per_unit[begin + j], partial[..., at])
        while partial.shape[-1] > 1:
            a, b = np.split(partial, 2, axis=-1)
            partial = a + b

        p = np.rint(w.astype(float) * 65535)
        s = p @ vc[here]
        if i16:
            s = (s - np.mod(p, 256) @ low_digit(vc[here])) / 256
        larger = np.maximum(top, maximum)
        a = np.where(seen, np.exp2(np.maximum(top - larger, F32(-126))), F32(1)).astype(F32)
        b = np.where(seen, np.exp2(np.maximum(maximum - larger, F32(-126))), F32(0)).astype(F32)
        weight_sum = fma(partial, b, weight_sum * a)
        total = fma(s.astype(F32), b, total * a)
        top = np.where(seen, larger, top)
    return turn(total) * (F32(unit / 65535) / F32(block) / weight_sum)


def attention(kv, scenario, pairs, channels):
    """attend() of Model.forward for a KV type and a scenario."""
    k_factor, v_factor = SCENARIOS[scenario]

    def attend(q, k, v):
        hd = k.shape[-1]
        k_scale, v_scale = np.ones(hd), np.ones(hd)
        k_scale[[*pairs, *(p + hd // 2 for p in pairs)]] = k_factor
        v_scale[list(channels)] = v_factor
        one = integer_attention if kv[0] == "i" else softmax_attention
        groups = np.split(q / k_scale, len(k))
        out = [one(groups[h], k[h] * k_scale, v[h] * v_scale, kv) for h in range(len(k))]
        return np.concatenate(out).astype(float) / v_scale

    return attend


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=REPOSITORY / "model/demo/storyteller.tmac2")
    parser.add_argument("--ids", default=REPOSITORY / "tests/data/held_out.json", help='{"windows": [[id, ...], ...]}')
    parser.add_argument("--int8", action="store_true", help="round activations to int8, as edgellm does")
    parser.add_argument("--pairs", default="3,17", help="RoPE pairs of K that are outliers (default %(default)s)")
    parser.add_argument("--channels", default="5,40", help="channels of V that are outliers (default %(default)s)")
    args = parser.parse_args()
    pairs, channels = ([int(n) for n in text.split(",")] for text in (args.pairs, args.channels))
    model = Model(args.model)
    windows = json.loads(pathlib.Path(args.ids).read_text())["windows"]

    runs = [("f32", "plain")] + [(kv, scenario) for scenario in SCENARIOS for kv in ("f16", "i16", "i8")]
    loss = dict.fromkeys(runs, 0.0)
    error = dict.fromkeys(runs, 0.0)
    length = 0.0
    for ids in windows:
        for run in runs:
            logits = model.forward(ids, attention(*run, pairs, channels), args.int8)
            if run == runs[0]:
                exact = logits
                length += np.sum(exact**2)
            error[run] += np.sum((logits - exact) ** 2)
            logits = logits[:-1] - logits[:-1].max(-1, keepdims=True)
            chosen = logits[np.arange(len(ids) - 1), ids[1:]]
            loss[run] += np.sum(np.log(np.exp(logits).sum(-1)) - chosen)
    tokens = sum(len(ids) - 1 for ids in windows)
    print(f"{tokens} tokens, {'int8' if args.int8 else 'double'} activations, K pairs {pairs}, V channels {channels}")
    for run in runs:
        change = 100 * np.expm1((loss[run] - loss[runs[0]]) / tokens)
        drift = np.sqrt(error[run] / length)
        print(f"{run[0]:4} {run[1]:14} ppl {np.exp(loss[run] / tokens):.5f}  {change:+.4f} %  drift {drift:.2e}")


if __name__ == "__main__":
    main()
