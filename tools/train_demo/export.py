#!/usr/bin/env python3
"""Master weights and tokenizer to two folders that transformers and edgellm read.

demo-model       ternary weights packed four to a byte, the layout of microsoft/bitnet-b1.58-2B-4T
demo-model-bf16  master weights in bf16, quantised when loaded, the layout of microsoft/bitnet-b1.58-2B-4T-bf16

Both are made from the weights rounded to bf16, so that a converter fed with either arrives at the same bits.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import model
from common import BOS, EOS, EOT

# The 35 MB of bf16 weights make three shards: small, but the case a loader has to handle.
SHARD_BYTES = 13_500_000
TRANSFORMERS_VERSION = "4.52.0.dev0"  # as in the configs of BitNet 2B-4T


def pack(codes):
    """pack_weights of transformers.integrations.bitnet: with R = rows / 4, byte [r, c] holds code + 1 of the rows
    r, r + R, r + 2R, r + 3R in bits 0-1, 2-3, 4-5, 6-7."""
    if codes.shape[0] % 4:
        raise ValueError(f"{codes.shape[0]} rows cannot be packed: not a multiple of 4")
    q0, q1, q2, q3 = (codes + 1).to(torch.uint8).chunk(4)
    return q0 | (q1 << 2) | (q2 << 4) | (q3 << 6)


def model_config(tok, mode):
    return {
        "architectures": ["BitNetForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tok.token_to_id(BOS),
        "eos_token_id": tok.token_to_id(EOS),
        "hidden_act": "relu2",
        "hidden_size": model.HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": model.FFN,
        "max_position_embeddings": model.MAX_POSITIONS,
        "model_type": "bitnet",
        "num_attention_heads": model.HEADS,
        "num_hidden_layers": model.LAYERS,
        "num_key_value_heads": model.KV_HEADS,
        "rms_norm_eps": model.RMS_EPS,
        "rope_theta": model.ROPE_THETA,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": TRANSFORMERS_VERSION,
        "use_cache": True,
        "vocab_size": tok.get_vocab_size(),
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": mode},
    }


def generation_config(tok):
    return {
        "_from_model_config": True,
        "bos_token_id": tok.token_to_id(BOS),
        "eos_token_id": [tok.token_to_id(EOS), tok.token_to_id(EOT)],
        "do_sample": True,
        "max_length": model.MAX_POSITIONS,
        "temperature": 0.7,
        "top_p": 0.9,
        "transformers_version": TRANSFORMERS_VERSION,
        "repetition_penalty": 1.1,
    }


def write_companions(folder, tokenizer_folder, mode):
    folder.mkdir(parents=True, exist_ok=True)
    tok = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(model_config(tok, mode), indent=2))
    (folder / "generation_config.json").write_text(json.dumps(generation_config(tok), indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(tokenizer_folder / name, folder)


def write_packed(folder, weights):
    packed, zeros, total = {}, 0, 0
    for name, w in weights.items():
        if model.is_ternary(name):
            codes, scale = model.ternarise(w.float())
            packed[name] = pack(codes)
            packed[name.replace(".weight", ".weight_scale")] = scale.reshape(1).to(torch.bfloat16)
            zeros += int((codes == 0).sum())
            total += codes.numel()
        else:
            packed[name] = w
    file = folder / "model.safetensors"
    save_file(packed, file, metadata={"format": "pt"})
    print(f"{file}: {file.stat().st_size} bytes, {zeros / total:.1%} of the ternary weights are zero")


def write_sharded(folder, weights):
    shards, size = [[]], 0
    for name, w in weights.items():
        if size + w.nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += w.nbytes
    weight_map = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: weights[name] for name in names}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    print(f"{folder}: {len(shards)} shards, {index['metadata']['total_size']} bytes of weights")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--master", type=Path, required=True, help="master.safetensors of train.py")
    ap.add_argument("--tokenizer", type=Path, required=True, help="folder of tok_train.py")
    ap.add_argument("--out", type=Path, required=True, help="folder for demo-model/ and demo-model-bf16/")
    args = ap.parse_args()

    weights = {name: w.to(torch.bfloat16) for name, w in load_file(args.master).items()}
    for name, mode, write in (("demo-model", "offline", write_packed), ("demo-model-bf16", "online", write_sharded)):
        write_companions(args.out / name, args.tokenizer, mode)
        write(args.out / name, weights)


if __name__ == "__main__":
    main()
