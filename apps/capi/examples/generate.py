#!/usr/bin/env python3
"""Continues a prompt with libedgellm.so through ctypes, and reads the logits on the way.

    generate.py model.tmac2 "Once upon a time" -n 100
    generate.py model.tmac2 "Once upon a time" -n 20 --json --logits last.npy

Needs nothing but Python 3. The library is found by the system's loader; LIBEDGELLM=/path/libedgellm.so
names another one.
"""
import argparse
import ctypes
import ctypes.util
import json
import os
import sys

ABI_VERSION = 1
ERROR_CONTEXT = 6
TEXT_PROMPT = 1


class ModelOptions(ctypes.Structure):
    """edgellm_model_options: what is not set is zero, the default."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_char_p),
                ("threads", ctypes.c_int32), ("context", ctypes.c_int32),
                ("kv_type", ctypes.c_int32), ("max_sequences", ctypes.c_int32),
                ("prefill_chunk", ctypes.c_int32), ("no_verify", ctypes.c_int32)]


class SamplingOptions(ctypes.Structure):
    """edgellm_sampling_options: what is not set is zero, which is greedy."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("temperature", ctypes.c_double),
                ("top_p", ctypes.c_double), ("min_p", ctypes.c_double),
                ("repeat_penalty", ctypes.c_double), ("seed", ctypes.c_uint64),
                ("top_k", ctypes.c_int32), ("ban_stop_ids", ctypes.c_int32)]


class Failure(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def load_library():
    name = os.environ.get("LIBEDGELLM") or f"libedgellm.so.{ABI_VERSION}"
    lib = ctypes.CDLL(name)
    handle, size = ctypes.c_void_p, ctypes.c_size_t
    ids, floats = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_float)
    results = {"edgellm_last_error": ctypes.c_char_p, "edgellm_model_device": ctypes.c_char_p,
               "edgellm_model_close": None, "edgellm_sequence_free": None}
    for function, arguments in {
            "edgellm_abi_version": [],
            "edgellm_last_error": [],
            "edgellm_model_open": [ctypes.c_char_p, ctypes.POINTER(ModelOptions),
                                   ctypes.POINTER(handle)],
            "edgellm_model_close": [handle],
            "edgellm_model_vocab": [handle],
            "edgellm_model_device": [handle],
            "edgellm_model_is_stop_id": [handle, ctypes.c_int32],
            "edgellm_detokenize": [handle, ids, size, ctypes.c_char_p, size, ctypes.POINTER(size)],
            "edgellm_sequence_create": [handle, ctypes.POINTER(handle)],
            "edgellm_sequence_free": [handle],
            "edgellm_sequence_set_sampling": [handle, ctypes.POINTER(SamplingOptions)],
            "edgellm_feed_text": [handle, ctypes.c_char_p, size, ctypes.c_uint32],
            "edgellm_logits": [handle, floats, size],
            "edgellm_step": [handle, ids]}.items():
        getattr(lib, function).argtypes = arguments
        getattr(lib, function).restype = results.get(function, ctypes.c_int32)
    if lib.edgellm_abi_version() != ABI_VERSION:
        raise Failure(4, f"{name} has ABI version {lib.edgellm_abi_version()}, "
                         f"expected {ABI_VERSION}")
    return lib


class Model:
    def __init__(self, lib, path, device, threads):
        self.lib = lib
        self.handle = ctypes.c_void_p()
        options = ModelOptions(struct_size=ctypes.sizeof(ModelOptions), device=device.encode(),
                               threads=threads)
        self.check(lib.edgellm_model_open(os.fsencode(path), ctypes.byref(options),
                                          ctypes.byref(self.handle)))
        self.vocab = lib.edgellm_model_vocab(self.handle)

    def check(self, status):
        if status != 0:
            raise Failure(status, self.lib.edgellm_last_error().decode("utf-8", "replace"))

    def text(self, ids):
        array = (ctypes.c_int32 * len(ids))(*ids)
        n_bytes = ctypes.c_size_t()
        self.check(self.lib.edgellm_detokenize(self.handle, array, len(ids), None, 0,
                                               ctypes.byref(n_bytes)))
        buffer = ctypes.create_string_buffer(n_bytes.value)
        self.check(self.lib.edgellm_detokenize(self.handle, array, len(ids), buffer,
                                               n_bytes.value, ctypes.byref(n_bytes)))
        return buffer.raw.decode("utf-8", "replace")

    def generate(self, prompt, n_tokens, sampling, on_logits=None):
        """Yields ids until one ends the answer, which is the last."""
        sequence = ctypes.c_void_p()
        self.check(self.lib.edgellm_sequence_create(self.handle, ctypes.byref(sequence)))
        try:
            raw = prompt.encode()
            self.check(self.lib.edgellm_feed_text(sequence, raw, len(raw), TEXT_PROMPT))
            self.check(self.lib.edgellm_sequence_set_sampling(sequence, ctypes.byref(sampling)))
            if on_logits:  # those that the first id is chosen by
                logits = (ctypes.c_float * self.vocab)()
                self.check(self.lib.edgellm_logits(sequence, logits, self.vocab))
                on_logits(logits)
            chosen = ctypes.c_int32()
            for _ in range(n_tokens):
                status = self.lib.edgellm_step(sequence, ctypes.byref(chosen))
                if status == ERROR_CONTEXT:
                    return
                self.check(status)
                yield chosen.value
                if self.lib.edgellm_model_is_stop_id(self.handle, chosen):
                    return
        finally:
            self.lib.edgellm_sequence_free(sequence)

    def close(self):
        self.lib.edgellm_model_close(self.handle)


def write_npy(path, values):
    """float32 [1, n], as `edgellm logits -o` writes it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {len(values)}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        file.write(bytes(values))


def main():
    parser = argparse.ArgumentParser(description="Continue a prompt with libedgellm.")
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("-n", type=int, default=100, help="tokens at most")
    parser.add_argument("--temp", type=float, default=0, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--logits", metavar="OUT.npy", help="write the logits after the prompt")
    parser.add_argument("--json", action="store_true", help="print ids and text as JSON")
    args = parser.parse_args()

    model = Model(load_library(), args.model, args.device, args.threads)
    sampling = SamplingOptions(struct_size=ctypes.sizeof(SamplingOptions), temperature=args.temp,
                               seed=args.seed)
    on_logits = (lambda logits: write_npy(args.logits, logits)) if args.logits else None
    ids = list(model.generate(args.prompt, args.n, sampling, on_logits))
    text = model.text(ids)
    model.close()
    print(json.dumps({"token_ids": ids, "text": text}) if args.json else text)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"generate.py: {failure}", file=sys.stderr)
        sys.exit(failure.status)
