#!/usr/bin/env python3
"""Writes tests/data/sampling/goldens.json: what the logits processors of Hugging Face transformers keep
of logits, and with which probability. Needs torch and transformers (any virtual environment):

    python3 tools/sampling_goldens.py > tests/data/sampling/goldens.json
"""
import json
import random

import torch
import transformers
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


def processors(options):
    """In the order in which generate() has them."""
    chosen = LogitsProcessorList()
    if options["repeat_penalty"] != 1:
        chosen.append(RepetitionPenaltyLogitsProcessor(options["repeat_penalty"]))
    chosen.append(TemperatureLogitsWarper(options["temperature"]))
    if options["top_k"] > 0:
        chosen.append(TopKLogitsWarper(options["top_k"]))
    if options["top_p"] < 1:
        chosen.append(TopPLogitsWarper(options["top_p"]))
    if options["min_p"] > 0:
        chosen.append(MinPLogitsWarper(options["min_p"]))
    return chosen


def main():
    random.seed(15)
    torch.manual_seed(15)
    cases = []
    for _ in range(60):
        vocab = random.choice([5, 17, 40])
        # Distinct, so that no filter has to choose among equals; floats of few digits.
        logits = [value / 64 for value in random.sample(range(-300, 300), vocab)]
        options = {
            "temperature": random.choice([0.5, 0.8, 1.0, 1.7]),
            "top_k": random.choice([0, 0, 1, 3, 8]),
            "top_p": random.choice([1.0, 1.0, 0.3, 0.8, 0.95]),
            "min_p": random.choice([0.0, 0.0, 0.05, 0.3]),
            "repeat_penalty": random.choice([1.0, 1.0, 1.25, 0.75]),
        }
        prompt = [random.randrange(vocab) for _ in range(6)]
        scores = processors(options)(
            torch.tensor([prompt]), torch.tensor([logits], dtype=torch.float64)
        )
        probabilities = torch.softmax(scores[0], dim=-1).tolist()
        cases.append(
            {"logits": logits, "prompt": prompt, "options": options, "probabilities": probabilities}
        )
    print(
        json.dumps(
            {"transformers": transformers.__version__, "torch": torch.__version__, "cases": cases},
            indent=None,
        )
    )


if __name__ == "__main__":
    main()
