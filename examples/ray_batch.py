"""Answers a file of prompts with Ray Data, through the URL of `edgellm serve` or of a router (docs/cluster.md).

    ray_batch.py IN URL MODEL OUT     IN: JSONL or Parquet with the columns id and prompt; OUT: a folder of the same form
"""
import sys

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

source, url, model, output = sys.argv[1:]
form = "parquet" if source.endswith(".parquet") else "json"
# A worker of Ray sends the rows of a batch one after the other, and a few batches at a time.
config = HttpRequestProcessorConfig(url=f"{url}/v1/completions", batch_size=1, concurrency=2, max_retries=6)
answer = build_processor(
    config,
    preprocess=lambda row: {"id": row["id"], "payload": {"model": model, "prompt": row["prompt"], "max_tokens": 100,
                                                         "temperature": 0}},
    postprocess=lambda row: {"id": row["id"], "text": row["http_response"]["choices"][0]["text"]})
rows = getattr(ray.data, f"read_{form}")(source)
getattr(answer(rows), f"write_{form}")(output)
