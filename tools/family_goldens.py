#!/usr/bin/env python3
"""Writes tests/data/families: small random checkpoints of the families that edgellm runs, and what
transformers computes with them in float32. See tests/data/families/README.md.

usage: tools/family_goldens.py [NAME ...]     (needs: pip install torch transformers accelerate numpy)
"""
import copy
import json
import os
import pathlib
import shutil
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # transformers compiles parts of BitLinear, with other roundings

import numpy
import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "families"
GROUP = 128
PROMPT_IDS = 150  # across a chunk of attention
INT8_PROMPT_IDS = 24
SIZES = dict(vocab_size=160, intermediate_size=272, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=512)


# --- Float activations ------------------------------------------------------------------------

def ternary(shape, group, dtype, generator):
    """Codes times a scale for each group of columns, which dtype holds exactly."""
    rows, cols = shape
    matrix = torch.empty(shape)
    for begin in range(0, cols, group or cols):
        end = min(begin + (group or cols), cols)
        codes = torch.randint(-1, 2, (rows, end - begin), generator=generator).float()
        spread = torch.rand(rows, 1, generator=generator) if group else torch.full((1, 1), 0.5)
        scale = (0.5 + spread) * 0.8 / (0.66 * cols) ** 0.5
        matrix[:, begin:end] = codes * scale.to(dtype).float()
    return matrix


def write_float(name, model_class, config, dtype, group, ternary_tables):
    generator = torch.Generator().manual_seed(20261123)
    model = model_class(config).float().eval()
    with torch.no_grad():
        for tensor_name, parameter in model.named_parameters():
            shape = parameter.shape
            if parameter.ndim == 1:
                values = 1 + 0.3 * torch.randn(shape, generator=generator)
            elif "proj" in tensor_name or ternary_tables:
                values = ternary(shape, group, dtype, generator)
            else:
                values = 0.3 * torch.randn(shape, generator=generator)
            parameter.copy_(values.to(dtype).float())
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, config.vocab_size, (1, PROMPT_IDS), generator=generator)
    with torch.no_grad():
        logits = model(ids).logits[0]
    write_prompt(folder, ids, logits)


# --- Int8 activations -------------------------------------------------------------------------

def masters(names_and_shapes, dtype, generator):
    """Weights before they are quantised, by name."""
    tensors = {}
    for name, shape in names_and_shapes:
        if len(shape) == 1:
            values = 1 + 0.3 * torch.randn(shape, generator=generator)
        else:
            values = (0.05 if "proj" in name else 0.3) * torch.randn(shape, generator=generator)
        tensors[name] = values.to(dtype)
    return tensors


def packed(tensors):
    """As onebitllms' quantize_to_1bit leaves a checkpoint: four codes a byte, and 1 / mean|W|."""
    from transformers.integrations import pack_weights
    result = {}
    for name, tensor in tensors.items():
        if "proj" not in name or tensor.ndim == 1:
            result[name] = tensor
            continue
        scale = 1 / tensor.float().abs().mean().clamp(min=1e-5)
        result[name] = pack_weights((tensor.float() * scale).round().clamp(-1, 1))
        result[name.replace(".weight", ".weight_scale")] = scale.to(torch.bfloat16).view(1)
    return result


def write_checkpoint(folder, config, tensors):
    """config: what config.json says."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def noisy(model, generator):
    """A copy in float64 whose quantisers see values that are off by a few roundings of float32."""
    copied = torch.nn.Module.double(copy.deepcopy(model))

    def disturb(module, inputs):
        noise = torch.randn(inputs[0].shape, generator=generator, dtype=torch.float64)
        return (inputs[0] * (1 + 5e-7 * noise),)

    for name, module in copied.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(disturb)
    return copied


def write_int8_prompt(folder, model, vocab, generator):
    """A prompt in which no value lies so near the boundary between two int8 codes that correct programs
    could take another code: on such a one they agree to about 1e-6."""
    other = noisy(model, generator)
    for _ in range(400):
        ids = torch.randint(0, vocab, (1, INT8_PROMPT_IDS), generator=generator)
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0]
            limit = 3e-5 * logits.square().mean().sqrt()
            if all((logits - other(ids, use_cache=False).logits[0]).abs().max() < limit
                   for _ in range(8)):
                write_prompt(folder, ids, logits)
                return
    sys.exit(f"{folder}: a code may flip in every prompt")


def write_prompt(folder, ids, logits):
    numpy.save(folder / "logits.npy", logits.numpy())
    (folder / "ids.json").write_text(json.dumps(ids[0].tolist()))


def write_int8(name, model_class, config, quantization, is_packed, with_gains):
    generator = torch.Generator().manual_seed(20261124)
    parameters = [(n, tuple(p.shape)) for n, p in model_class(config).named_parameters()]
    if with_gains:
        parameters += [(n.replace(".weight", ".rms_norm.weight"), (shape[1],))
                       for n, shape in parameters if "proj" in n]
    tensors = masters(parameters, torch.bfloat16, generator)
    folder = FOLDER / name
    as_json = config.to_dict() | {"architectures": [model_class.__name__],
                                  "quantization_config": quantization}
    write_checkpoint(folder, as_json, packed(tensors) if is_packed else tensors)
    model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
    write_int8_prompt(folder, model, config.vocab_size, generator)


# --- The checkpoints --------------------------------------------------------------------------

def families():
    from transformers import (BitNetConfig, BitNetForCausalLM, LlamaConfig, LlamaForCausalLM,
                              Qwen3Config, Qwen3ForCausalLM)
    sizes = dict(SIZES, hidden_size=160, num_key_value_heads=2, rms_norm_eps=1e-6)
    plain = dict(rope_type="default", rope_theta=1000000.0)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128,
                rope_theta=1000000.0)
    qwen3 = Qwen3Config(head_dim=32, tie_word_embeddings=False, rope_parameters=plain, **sizes)
    qwen3_yarn = Qwen3Config(head_dim=32, tie_word_embeddings=True, rope_parameters=yarn, **sizes)
    llama = LlamaConfig(tie_word_embeddings=False, rope_parameters=plain, **sizes)
    sizes["rms_norm_eps"] = 1e-5
    falcon_e = LlamaConfig(tie_word_embeddings=False, rope_parameters=plain, **sizes)
    bitnet = BitNetConfig(tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
                          rope_parameters=plain, **sizes)
    only = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}
    # An eps unlike the model's, and large enough to show.
    norms = {"use_rms_norm": True, "rms_norm_eps": 0.01}
    online = {"linear_class": "autobitlinear", "quantization_mode": "online"}
    return {
        "bonsai": lambda name: write_float(name, Qwen3ForCausalLM, qwen3, torch.float16, GROUP,
                                           True),
        "bonsai-tied-yarn": lambda name: write_float(name, Qwen3ForCausalLM, qwen3_yarn,
                                                     torch.bfloat16, GROUP, True),
        "trilm": lambda name: write_float(name, LlamaForCausalLM, llama, torch.float16, 0, False),
        "falcon-e": lambda name: write_int8(name, LlamaForCausalLM, falcon_e, only, True, False),
        "llama-input-norms": lambda name: write_int8(name, LlamaForCausalLM, falcon_e,
                                                     only | norms | online, False, True),
        "bitnet-input-norms": lambda name: write_int8(name, BitNetForCausalLM, bitnet,
                                                      only | norms, True, False),
    }


def main():
    known = families()
    names = sys.argv[1:] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no family {', '.join(unknown)}; known are {', '.join(known)}")
    for name in names:
        known[name](name)


if __name__ == "__main__":
    main()
