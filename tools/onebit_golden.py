#!/usr/bin/env python3
"""Writes tests/data/families/1bitllm: a small random checkpoint of 1bitLLM's family (BitnetForCausalLM),
and what their own code computes with it in float32.

usage: tools/onebit_golden.py FOLDER      (needs: pip install torch transformers==4.39.3 numpy)

FOLDER holds modeling_bitnet.py, configuration_bitnet.py and utils_quant.py of
https://huggingface.co/1bitLLM/bitnet_b1_58-3B. They are no part of this repository.
"""
import pathlib
import re
import sys
import tempfile

import torch

import family_goldens as goldens


def load_package(folder):
    """Their files as a package: as on the Hub they import each other relatively, in copies not."""
    package = pathlib.Path(tempfile.mkdtemp()) / "onebit"
    package.mkdir()
    for name in ("modeling_bitnet", "configuration_bitnet", "utils_quant"):
        code = (folder / f"{name}.py").read_text()
        code = re.sub(r"^from (configuration_bitnet|utils_quant) import", r"from .\1 import", code,
                      flags=re.MULTILINE)
        (package / f"{name}.py").write_text(code)
    sys.path.insert(0, str(package.parent))
    from onebit.configuration_bitnet import BitnetConfig
    from onebit.modeling_bitnet import BitnetForCausalLM
    return BitnetConfig, BitnetForCausalLM


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    config_class, model_class = load_package(pathlib.Path(sys.argv[1]))
    config = config_class(hidden_size=160, num_key_value_heads=4, rms_norm_eps=1e-5,
                          rope_theta=10000.0, tie_word_embeddings=True, pad_token_id=2,
                          **goldens.SIZES)
    generator = torch.Generator().manual_seed(20261125)
    model = model_class(config).float().eval()
    tensors = goldens.masters([(n, p.shape) for n, p in model.named_parameters()], torch.float16,
                              generator)
    folder = goldens.FOLDER / "1bitllm"
    goldens.write_checkpoint(
        folder, config.to_diff_dict() | {"architectures": ["BitnetForCausalLM"]}, tensors)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name].float())
    goldens.write_int8_prompt(folder, model, config.vocab_size, generator)


if __name__ == "__main__":
    main()
