#!/usr/bin/env python3
"""Writes the goldens of the GGUF importer (tests/data/gguf) with packages that are not ours.

    pip install gguf==0.19.0 sentencepiece==0.2.3 numpy
    tools/gguf_goldens.py tests/data/gguf

types.json          blocks of random bytes of each type that `gguf` knows, and its float32 values
package.gguf.gz     a model of one layer as the package's writer writes it
sentencepiece.json  a small BPE model with byte fallback, trained by SentencePiece: pieces, scores,
                    types, and the ids that it makes of texts
"""
import gzip
import io
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import sentencepiece

TYPES = gguf.GGMLQuantizationType


def types():
    random = np.random.default_rng(17)
    for name in ("F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "TQ1_0", "TQ2_0"):
        block, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
        n_blocks = 64 if block == 1 else 6
        data = random.integers(0, 256, (n_blocks, size), dtype=np.uint8)
        scale = random.uniform(-2, 2, n_blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
        if name in ("F16", "BF16"):
            data = random.normal(size=n_blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
        elif name in ("Q4_0", "Q8_0", "Q4_K"):
            data[:, :2] = scale
        else:
            data[:, -2:] = scale
        if name == "Q4_K":
            data[:, 2:4] = np.flip(scale, 0)
        if name == "TQ2_0":  # no code 3
            pairs = random.integers(0, 3, (n_blocks, 64, 4), dtype=np.uint8)
            data[:, :64] = sum(pairs[..., i] << 2 * i for i in range(4))
        values = gguf.quants.dequantize(data, TYPES[name]).astype(np.float32)
        yield {"type": name, "number": int(TYPES[name]), "bytes": data.tobytes().hex(),
               "values": values.tobytes().hex()}


def code(matrix, row, col):
    """-1, 0 or 1, mostly 0; tests/model/gguf_test.cpp has the same rule."""
    mixed = ((row * 31 + col * 17 + matrix * 7) * 2654435761) % 2**32 >> 20
    return {0: 1, 1: -1}.get(mixed % 16, 0)


def package_file(path):
    dim, vocab = 256, 11
    writer = gguf.GGUFWriter(path, "bitnet")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(dim)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(64)
    writer.add_license("mit")
    writer.add_tokenizer_model("none")

    def add(name, values, kind):
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), TYPES[kind]),
                          raw_dtype=TYPES[kind])

    index = np.arange(vocab * dim, dtype=np.float32).reshape(vocab, dim)
    add("token_embd.weight", (index % 64 - 32) / 16, "BF16")
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.attn_sub_norm", "blk.0.ffn_norm",
                 "blk.0.ffn_sub_norm"):
        add(f"{name}.weight", np.full(dim, 1.5), "F32")
    for matrix, (name, rows, kind) in enumerate((
            ("attn_q", dim, "TQ1_0"), ("attn_k", 64, "TQ2_0"), ("attn_v", 64, "TQ1_0"),
            ("attn_output", dim, "TQ2_0"), ("ffn_gate", dim, "TQ1_0"), ("ffn_up", dim, "F16"),
            ("ffn_down", dim, "TQ2_0"))):
        codes = np.array([[code(matrix, row, col) for col in range(dim)] for row in range(rows)])
        add(f"blk.0.{name}.weight", codes * (matrix + 1) / 64, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


TRAINING = """The king had a daughter, and the daughter had a golden ball which she threw high into the
air and caught again. One day the ball did not fall into her hand; it rolled away over the grass and
down into the well. She looked after it, but the well was deep, so deep that its bottom was not to be
seen. Then she began to weep, louder and louder, and nobody could comfort her. While she was weeping a
voice said: What is the matter, king's daughter? You weep so that even a stone would take pity. She
looked around to see where the voice came from, and there was a frog, stretching its thick and ugly
head out of the water. Ah, it is you, old water splasher, said she; I am weeping for my golden ball,
which has fallen down into the well. Be quiet and do not weep, answered the frog, I can help you. In
1812 there were 86 of these tales, in 1857 there were 210; x = 3.14 * (y + 2) - 7, a_b, "quoted"."""
TEXTS = ["The king had a golden ball.", "  two spaces  and three   more ", "weeping louder", "", " ",
         "a", "unknown \u00e9\u00df\u6f22\U0001f600 characters", "line\nbreak\tand tab", "1812 and 210",
         "3.14*(y+2)", "louderlouder deep deepdeep", "king's daughter's well", "THE KING", "\u2581x",
         "the the the the the frog frogfrog", "nobody could comfort her. While she was weeping"]


def sentencepiece_model():
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text"
        text.write_text(TRAINING.replace("\n", " ").replace(". ", ".\n"))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_writer=buffer, vocab_size=500, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=True, minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())
    kinds = []
    for i in range(model.get_piece_size()):
        kinds.append(2 if model.is_unknown(i) else 3 if model.is_control(i) else
                     6 if model.is_byte(i) else 1)
    return {"pieces": [model.id_to_piece(i) for i in range(model.get_piece_size())],
            "scores": [model.get_score(i) for i in range(model.get_piece_size())],
            "types": kinds, "bos": model.bos_id(), "eos": model.eos_id(), "unk": model.unk_id(),
            "cases": [{"text": text, "ids": model.encode(text)} for text in TEXTS]}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "types.json").write_text(json.dumps(list(types()), indent=0) + "\n")
    (folder / "sentencepiece.json").write_text(
        json.dumps(sentencepiece_model(), ensure_ascii=False) + "\n")
    with tempfile.TemporaryDirectory() as temp:
        path = pathlib.Path(temp) / "model.gguf"
        package_file(path)
        (folder / "package.gguf.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


if __name__ == "__main__":
    main()
