#!/usr/bin/env python3
"""Writes tests/data/families: small random checkpoints of the families that run with float activations, and
what transformers computes with them in float32. See tests/data/families/README.md.

usage: tools/family_goldens.py        (needs: pip install torch transformers numpy)
"""
import json
import pathlib
import shutil

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "families"
GROUP = 128
PROMPT_IDS = 150  # across a chunk of attention


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


def write(name, model_class, config, dtype, group, ternary_tables):
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
    numpy.save(folder / "logits.npy", logits.numpy())
    (folder / "ids.json").write_text(json.dumps(ids[0].tolist()))


def main():
    sizes = dict(vocab_size=160, intermediate_size=272, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6)
    plain = dict(rope_type="default", rope_theta=1000000.0)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128,
                rope_theta=1000000.0)
    write("bonsai", Qwen3ForCausalLM,
          Qwen3Config(hidden_size=160, head_dim=32, tie_word_embeddings=False,
                      rope_parameters=plain, **sizes), torch.float16, GROUP, True)
    write("bonsai-tied-yarn", Qwen3ForCausalLM,
          Qwen3Config(hidden_size=160, head_dim=32, tie_word_embeddings=True,
                      rope_parameters=yarn, **sizes), torch.bfloat16, GROUP, True)
    write("trilm", LlamaForCausalLM,
          LlamaConfig(hidden_size=160, tie_word_embeddings=False, rope_parameters=plain, **sizes),
          torch.float16, 0, False)


if __name__ == "__main__":
    main()
