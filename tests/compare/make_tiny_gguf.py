#!/usr/bin/env python3
"""Writes a GGUF file (version 3) of a small random LLaMA model that llama-server loads.

usage: make_tiny_gguf.py OUT.gguf

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
import array
import random
import struct
import sys

DIM, FFN, LAYERS, HEADS, KV_HEADS, CONTEXT = 256, 512, 4, 4, 2, 2048
F32 = 0
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
ALIGNMENT = 32


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


def number(key, value):
    if isinstance(value, float):
        return entry(key, FLOAT32, struct.pack("<f", value))
    return entry(key, UINT32, struct.pack("<I", value))


def strings(key, values):
    return entry(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(string, values)))


def numbers(key, kind, letter, values):
    return entry(key, ARRAY, struct.pack("<IQ", kind, len(values)) + struct.pack(f"<{len(values)}{letter}", *values))


def main():
    # A SentencePiece-like vocabulary: three controls, all bytes, letters.
    letters = [chr(c) for c in range(33, 127)] + ["\u2581"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + letters
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(letters)
    scores = [0.0] * 259 + [-float(i) for i in range(len(letters))]
    metadata = [
        entry("general.architecture", STRING, string("llama")),
        entry("general.name", STRING, string("tiny-random")),
        number("llama.context_length", CONTEXT),
        number("llama.embedding_length", DIM),
        number("llama.block_count", LAYERS),
        number("llama.feed_forward_length", FFN),
        number("llama.attention.head_count", HEADS),
        number("llama.attention.head_count_kv", KV_HEADS),
        number("llama.attention.layer_norm_rms_epsilon", 1e-5),
        number("llama.rope.dimension_count", DIM // HEADS),
        number("llama.vocab_size", len(tokens)),
        entry("tokenizer.ggml.model", STRING, string("llama")),
        strings("tokenizer.ggml.tokens", tokens),
        numbers("tokenizer.ggml.scores", FLOAT32, "f", scores),
        numbers("tokenizer.ggml.token_type", INT32, "i", kinds),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        number("tokenizer.ggml.unknown_token_id", 0),
    ]
    kv_dim = KV_HEADS * DIM // HEADS
    shapes = {"token_embd.weight": (len(tokens), DIM), "output_norm.weight": (DIM,), "output.weight": (len(tokens), DIM)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (DIM,), "attn_q": (DIM, DIM), "attn_k": (kv_dim, DIM), "attn_v": (kv_dim, DIM),
            "attn_output": (DIM, DIM), "ffn_norm": (DIM,), "ffn_gate": (FFN, DIM), "ffn_up": (FFN, DIM),
            "ffn_down": (DIM, FFN),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape

    generator = random.Random(1)
    infos, data = b"", b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = [1.0] * count if len(shape) == 1 else [generator.gauss(0, 0.05) for _ in range(count)]
        if name == "output.weight":
            values[: 259 * DIM] = [0.0] * (259 * DIM)  # letters win: text, and no end
        infos += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += struct.pack("<IQ", F32, len(data))
        data += array.array("f", values).tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(metadata)) + b"".join(metadata) + infos
    with open(sys.argv[1], "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT) + data)


if __name__ == "__main__":
    main()
