#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets (tests/fuzz): tiny, valid inputs that mutations start from.

    tools/fuzz_corpus.py build/cpu/edgellm tests/fuzz/corpus

The same program gives the same seeds. Inputs that a fuzzer found once lie beside them under other
names and are kept.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

SIZES = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
         "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 5, "max_position_embeddings": 64,
         "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": [2, 3]}
BITNET = {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2",
          "tie_word_embeddings": True,
          "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear",
                                  "quantization_mode": "offline"}, **SIZES}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
         "tie_word_embeddings": False, "quantization_config": {"quant_method": "bitnet"},
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
         **SIZES}
MASTERS = {**BITNET, "quantization_config": {"quant_method": "bitnet", "linear_class":
                                             "autobitlinear", "quantization_mode": "online"}}
NORMS = {**LLAMA, "quantization_config": {"quant_method": "bitnet", "use_rms_norm": True,
                                          "rms_norm_eps": 1e-06}}

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tokenizer(pre_tokenizer, normalizer=None, added=(), post_processor=None):
    vocab = {c: i for i, c in enumerate("abcdeĠ")}
    vocab.update({"ab": 6, "cd": 7, "Ġa": 8, "abcd": 9})
    return {"version": "1.0",
            "added_tokens": [{"id": len(vocab) + i, "content": content, "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": i % 2 == 1,
                              "special": i % 2 == 0} for i, content in enumerate(added)],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "byte_fallback": False, "ignore_merges": True, "vocab": vocab,
                      "merges": ["a b", ["c", "d"], "Ġ a", "ab cd"]}}


def tokenizers():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    yield "byte-level", tokenizer(byte_level, added=["<s>", "<x>"])
    yield "split", tokenizer(
        {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": GPT2_SPLIT}, "behavior": "Isolated",
             "invert": False}, {**byte_level, "use_regex": False}]},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, ["<s>"],
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
         "special_tokens": {"<s>": {"id": "<s>", "ids": [10], "tokens": ["<s>"]}}})


def safetensors(tensors):
    """The header and the data of (name, dtype, shape, bytes)."""
    header, data = {}, b""
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data),
                                                                        len(data) + len(raw)]}
        data += raw
    return json.dumps(header).encode(), data


def checkpoint(config, packed):
    def bf16(shape, value=1.0):
        n = 1
        for extent in shape:
            n *= extent
        return "BF16", shape, struct.pack("<f", value)[2:] * n

    layer = "model.layers.0."
    yield "model.embed_tokens.weight", *bf16([5, 4])
    yield "model.norm.weight", *bf16([4])
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", *bf16([5, 4])
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "bitnet":
        norms += ["self_attn.attn_sub_norm", "mlp.ffn_sub_norm"]
    for norm in norms:
        yield f"{layer}{norm}.weight", *bf16([4])
    for matrix in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                   "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        if "use_rms_norm" in config["quantization_config"]:
            yield f"{layer}{matrix}.rms_norm.weight", *bf16([4])
        if packed:
            yield f"{layer}{matrix}.weight", "U8", [1, 4], bytes([0x84, 0x21, 0x52, 0x06])
            yield f"{layer}{matrix}.weight_scale", *bf16([1], 0.5)
        else:
            yield f"{layer}{matrix}.weight", *bf16([4, 4], -0.75)


# ggml's number, weights in a block, bytes of a block, bytes in front of a row.
GGUF_TYPES = {"F32": (0, 1, 4, 0), "F16": (1, 1, 2, 0), "Q4_0": (2, 32, 18, 0),
              "Q8_0": (8, 32, 34, 0), "Q4_K": (12, 256, 144, 0), "Q6_K": (14, 256, 210, 0),
              "TQ1_0": (34, 256, 54, 0), "TQ2_0": (35, 256, 66, 0), "Q2_0": (42, 64, 18, 0),
              "PQ2_0": (142, 128, 34, 0), "PTQ1_0": (143, 128, 28, 0), "IQ1_BN": (134, 64, 13, 2),
              "IQ2_BN": (135, 64, 16, 4), "IQ2_BN_R4": (335, 64, 16, 4)}


def gguf_tensor(name, shape, kind):
    """Bytes of 0x55: the code 0 in all types of two bits, and a scale of some size."""
    n = 1
    for extent in shape:
        n *= extent
    if kind == "I2_S":
        return name, shape, 36, b"\x55" * (n // 4) + struct.pack("<f", 1.0) + bytes(28)
    number, block, block_bytes, row_header = GGUF_TYPES[kind]
    if kind in ("F32", "F16"):
        return name, shape, number, struct.pack("<f" if kind == "F32" else "<e", 1.0) * n
    row = b"\x55" * (row_header + block_bytes * (shape[-1] // block))
    return name, shape, number, row * (n // shape[-1])


def gguf(architecture, kinds, dim, sub_norms, keys):
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def value(x):
        if isinstance(x, bool):
            return struct.pack("<I?", 7, x)
        if isinstance(x, int):
            return struct.pack("<II", 4, x)
        if isinstance(x, float):
            return struct.pack("<If", 6, x)
        if isinstance(x, str):
            return struct.pack("<I", 8) + text(x)
        element = value(x[0])
        return struct.pack("<I", 9) + element[:4] + struct.pack("<Q", len(x)) + b"".join(
            value(y)[4:] for y in x)

    a = architecture + "."
    keys = {"general.architecture": architecture, a + "block_count": 1, a + "context_length": 64,
            a + "embedding_length": dim, a + "feed_forward_length": 4,
            a + "attention.head_count": 1, a + "attention.key_length": 8,
            a + "attention.layer_norm_rms_epsilon": 1e-5, **keys}
    tensors = [gguf_tensor("token_embd.weight", [5, dim], kinds[0]),
               gguf_tensor("output_norm.weight", [dim], "F32")]
    for name, size in (("attn_norm", dim), ("ffn_norm", dim), ("attn_sub_norm", 8),
                       ("ffn_sub_norm", 4)):
        if sub_norms or "sub" not in name:
            tensors.append(gguf_tensor(f"blk.0.{name}.weight", [size], "F32"))
    for i, (name, shape) in enumerate((
            ("attn_q", [8, dim]), ("attn_k", [8, dim]), ("attn_v", [8, dim]), ("ffn_gate", [4, dim]),
            ("ffn_up", [4, dim]), ("attn_output", [dim, 8]), ("ffn_down", [dim, 4]))):
        kind = kinds[1 + i % (len(kinds) - 1)] if i < 5 else "F16"
        tensors.append(gguf_tensor(f"blk.0.{name}.weight", shape, kind))
    file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    file += b"".join(text(key) + value(x) for key, x in keys.items())
    data = b""
    for name, shape, number, raw in tensors:
        file += text(name) + struct.pack("<I", len(shape))
        file += b"".join(struct.pack("<Q", extent) for extent in reversed(shape))
        file += struct.pack("<IQ", number, len(data))
        data += raw + bytes(-len(raw) % 32)
    return file + bytes(-len(file) % 32) + data


GGUF_BYTE_LEVEL = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
                   "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
                   "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"],
                   "tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.add_bos_token": True}
GGUF_PIECES = {"tokenizer.ggml.model": "llama",
               "tokenizer.ggml.tokens": ["<unk>", "a", "b", "ab", "<0x41>"],
               "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -0.5, 0.0],
               "tokenizer.ggml.token_type": [2, 1, 1, 1, 6]}


def main():
    program, corpus = sys.argv[1], pathlib.Path(sys.argv[2])

    def seed(target, name, content):
        folder = corpus / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{name}").write_bytes(content)

    with tempfile.TemporaryDirectory() as temp:
        for name, config in (("bitnet", BITNET), ("llama", LLAMA), ("norms", NORMS)):
            shape, model = f"{temp}/config.json", f"{temp}/model.tmac2"
            pathlib.Path(shape).write_text(json.dumps(config))
            subprocess.run([program, "synth", shape, "-o", model], check=True, capture_output=True)
            file = pathlib.Path(model).read_bytes()
            (n_metadata,) = struct.unpack_from("<Q", file, 16)
            metadata = file[32:32 + n_metadata]
            data = file[min(s["offset"] for s in json.loads(metadata)["sections"]):]
            if name == "bitnet":
                seed("model_file_fuzz", f"{name}-file", b"F" + file)
            seed("model_file_fuzz", f"{name}-metadata", b"M" + metadata + b"\0" + data)
            seed("model_file_fuzz", f"{name}-hashes", b"H" + metadata + b"\0" + data)

    texts = [json.dumps(tree, ensure_ascii=False).encode() for _, tree in tokenizers()]
    for (name, _), text in zip(tokenizers(), texts):
        seed("tokenizer_fuzz", name, text + b"\0" + "ab abcd <s> \u00e9e\u0301\n1".encode())

    tokenizer_config = json.dumps({"add_bos_token": True, "bos_token": "<s>", "eos_token": "<x>",
                                   "chat_template": "{{ bos_token }}"}).encode()
    generation_config = json.dumps({"do_sample": True, "temperature": 0.6, "top_k": 5,
                                    "eos_token_id": [2]}).encode()
    small = json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
                        "added_tokens": []}).encode()
    for name, config, packed, files in (
            ("bitnet", BITNET, True, [small, tokenizer_config, generation_config, b""]),
            ("llama", LLAMA, True, [b"", b"", generation_config, b""]),
            ("masters", MASTERS, False, [b"", b"", b"", b""]),
            ("norms", NORMS, True, [b"", b"", b"", b""])):
        header, data = safetensors(checkpoint(config, packed))
        front = b"".join(text + b"\0" for text in [json.dumps(config).encode(), *files])
        seed("hf_folder_fuzz", name, front + b"H" + header + b"\0" + data)
        if name == "masters":
            seed("hf_folder_fuzz", f"{name}-file",
                 front + b"F" + struct.pack("<Q", len(header)) + header + data)

    for name, layout, architecture, kinds, dim, keys in (
            ("ternary", "-", "bitnet", ["Q6_K", "Q2_0", "TQ1_0", "TQ2_0", "PQ2_0", "PTQ1_0"], 256,
             GGUF_BYTE_LEVEL),
            ("i2s", "x", "bitnet-b1.58", ["Q4_K", "I2_S"], 256, {}),
            ("i2s-rows", "r", "bitnet-25", ["Q8_0", "I2_S"], 32, {}),
            ("bn", "-", "llama", ["Q4_0", "IQ1_BN", "IQ2_BN", "IQ2_BN_R4"], 64, GGUF_PIECES),
            ("floats", "-", "llama", ["F32", "F32", "F16"], 4, {"llama.rope.freq_base": 500000.0})):
        file = gguf(architecture, kinds, dim, architecture.startswith("bitnet"), keys)
        seed("gguf_fuzz", name, layout.encode() + file)

    for name, words in (
            ("run", ["run", "m", "-p", "x", "-n", "5", "--temp", "0.7", "--stop", "a", "--json"]),
            ("run-ids", ["run", "m", "--ids-file", "i", "--seed=1", "--top-k", "3", "--sample"]),
            ("convert", ["convert", "a", "-o", "b", "--ignore-key", "k"]),
            ("synth", ["synth", "smollm-135m", "--layers", "2", "-o", "m", "--seed", "3"]),
            ("logits", ["logits", "m", "-p", "x", "--all", "--device", "cuda:1", "-c", "9"]),
            ("perplexity", ["perplexity", "m", "-f", "-", "--window", "8", "--threads", "1"]),
            ("batch", ["batch", "m", "-i", "a", "-o", "b", "--shard", "1/4", "--kv-memory", "2G"]),
            ("merge", ["batch", "--merge", "a", "b", "-o", "c"]),
            ("tokenize", ["tokenize", "m", "--", "-text"])):
        seed("arguments_fuzz", name, b"".join(word.encode() + b"\0" for word in words))

    seed("batch_fuzz", "requests", "\ufeff".encode() + b"\r\n".join(
        json.dumps(line).encode() for line in (
            {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
             "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
                      "max_tokens": 5, "temperature": 0.5, "stop": ["a"], "n": 1}},
            {"custom_id": "b", "url": "/v1/completions", "body": {"prompt": [1, 2], "seed": 3}},
            {"id": 7, "prompt": "x", "top_k": -1}, {"prompt": "x", "tools": []}, "x")))
    seed("batch_fuzz", "records", json.dumps(
        {"id": "batch_req_" + "0" * 32, "custom_id": "a", "line": 3, "response": {"x": [1]},
         "error": None}).encode() + b"\n")

    seed("request_fuzz", "chat", b"\1" + json.dumps(
        {"model": "m", "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
         "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 3,
         "max_completion_tokens": 5, "logit_bias": {"7": -1.5}, "stop": ["x"], "seed": 3}).encode())
    seed("request_fuzz", "completion", b"\0" + json.dumps(
        {"prompt": [[1, 2], [3]], "echo": True, "max_tokens": 0, "logprobs": 1, "n": 2, "temperature": 0,
         "frequency_penalty": 0.5, "ignore_eos": True, "return_token_ids": True}).encode())

    published = json.loads(
        (pathlib.Path(__file__).parents[1] / "tests/data/chat/templates.json").read_text())
    conversation = b"\0be brief\0\1hi  \xc3\xa9\n<s>\0\2ab\0\1c"  # the role's byte, the text
    for name in ("demo", "chatml", "llama-3", "mistral-v0.1", "mistral-v0.3", "qwen2.5"):
        seed("chat_template_fuzz", name,
             published[name]["template"].encode() + b"\0" + conversation)


if __name__ == "__main__":
    main()
