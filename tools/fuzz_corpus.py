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
        if packed:
            yield f"{layer}{matrix}.weight", "U8", [1, 4], bytes([0x84, 0x21, 0x52, 0x06])
            yield f"{layer}{matrix}.weight_scale", *bf16([1], 0.5)
        else:
            yield f"{layer}{matrix}.weight", *bf16([4, 4], -0.75)


def main():
    program, corpus = sys.argv[1], pathlib.Path(sys.argv[2])

    def seed(target, name, content):
        folder = corpus / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{name}").write_bytes(content)

    with tempfile.TemporaryDirectory() as temp:
        for name, config in (("bitnet", BITNET), ("llama", LLAMA)):
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
            ("masters", MASTERS, False, [b"", b"", b"", b""])):
        header, data = safetensors(checkpoint(config, packed))
        front = b"".join(text + b"\0" for text in [json.dumps(config).encode(), *files])
        seed("hf_folder_fuzz", name, front + b"H" + header + b"\0" + data)
        if name == "masters":
            seed("hf_folder_fuzz", f"{name}-file",
                 front + b"F" + struct.pack("<Q", len(header)) + header + data)

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

    published = json.loads(
        (pathlib.Path(__file__).parents[1] / "tests/data/chat/templates.json").read_text())
    conversation = b"\0be brief\0\1hi  \xc3\xa9\n<s>\0\2ab\0\1c"  # the role's byte, the text
    for name in ("demo", "chatml", "llama-3", "mistral-v0.1", "mistral-v0.3", "qwen2.5"):
        seed("chat_template_fuzz", name,
             published[name]["template"].encode() + b"\0" + conversation)


if __name__ == "__main__":
    main()
