"""The demo model in training form: BitNetForCausalLM of transformers with fake quantisation.

Master weights are float32. Each ternary linear sees weights rounded to {-1, 0, +1} * mean|w| and activations rounded
to int8 per token, the formulas of transformers/integrations/bitnet.py (WeightQuant, ActQuant); gradients pass
straight through both roundings. train.py optimises this, export.py packs what it leaves.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, FFN, LAYERS = 384, 1024, 10
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 64
MAX_POSITIONS, ROPE_THETA, RMS_EPS = 2048, 10000.0, 1e-5

# Order of the arguments of block(), and the names in a Hugging Face checkpoint.
LINEARS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
           "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
NORMS = {"input_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"}


def ternarise(w):
    """(codes -1, 0, +1 as float32, scale): w is about codes * scale, with the scale mean|w| of the whole matrix."""
    inverse = 1.0 / w.abs().mean().clamp(min=1e-5)
    return (w * inverse).round().clamp(-1, 1), 1.0 / inverse


def straight_through(quantised, x):
    """The value of the first with the gradient of the second, for bf16 matrix products."""
    return (quantised.detach() + (x - x.detach())).to(torch.bfloat16)


def quant_weight(w):
    codes, scale = ternarise(w.to(torch.bfloat16).float())
    return straight_through(codes * scale, w)


def quant_activation(x):
    x = x.float()
    scale = 127 / x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5)
    return straight_through((x * scale).round().clamp(-128, 127) / scale, x)


def rms_norm(x, gain):
    x = x.float()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + RMS_EPS)
    return gain.to(torch.bfloat16) * x.to(torch.bfloat16)


def rope_tables(positions, device):
    """cos and sin, [positions, HEAD_DIM] in bf16, from angles in float32."""
    inverse = 1.0 / (ROPE_THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32, device=device) / HEAD_DIM))
    angle = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), inverse)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)


def rope(x, cos, sin):
    x1, x2 = x.split(HEAD_DIM // 2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin


def block(x, cos, sin, q, k, v, o, gate, up, down, input_norm, ffn_norm, attn_sub_norm, ffn_sub_norm):
    """One layer; x: [batch, positions, HIDDEN]. A function of plain tensors, so that it is compiled once for all."""
    batch, positions, _ = x.shape

    def heads(y):
        return y.view(batch, positions, -1, HEAD_DIM).transpose(1, 2)

    h = quant_activation(rms_norm(x, input_norm))
    qkv = F.linear(h, torch.cat([quant_weight(q), quant_weight(k), quant_weight(v)]))
    queries, keys, values = qkv.split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=-1)
    y = F.scaled_dot_product_attention(rope(heads(queries), cos, sin), rope(heads(keys), cos, sin), heads(values),
                                       is_causal=True, enable_gqa=True)
    y = y.transpose(1, 2).reshape(batch, positions, HEADS * HEAD_DIM)
    x = x + F.linear(quant_activation(rms_norm(y, attn_sub_norm)), quant_weight(o))

    h = quant_activation(rms_norm(x, ffn_norm))
    g, u = F.linear(h, torch.cat([quant_weight(gate), quant_weight(up)])).split([FFN, FFN], dim=-1)
    y = torch.square(F.relu(g)) * u
    return x + F.linear(quant_activation(rms_norm(y, ffn_sub_norm)), quant_weight(down))


def embed(ids, embedding):
    return F.embedding(ids, embedding).to(torch.bfloat16)


def head_loss(x, norm, embedding, target):
    """Mean cross-entropy in nats; the output matrix is the embedding."""
    logits = F.linear(rms_norm(x, norm), embedding.to(torch.bfloat16))
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), target.reshape(-1))


class DemoModel(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()

        def normal(rows, cols, std=0.02):
            return nn.Parameter(torch.randn(rows, cols) * std)

        def ones(n):
            return nn.Parameter(torch.ones(n))

        residual_std = 0.02 / math.sqrt(2 * LAYERS)  # for the matrices that add to the residual stream
        self.embedding = normal(vocab_size, HIDDEN)
        self.layers = nn.ModuleList(nn.ParameterDict({
            "q": normal(HEADS * HEAD_DIM, HIDDEN),
            "k": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            "v": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            "o": normal(HIDDEN, HEADS * HEAD_DIM, residual_std),
            "gate": normal(FFN, HIDDEN),
            "up": normal(FFN, HIDDEN),
            "down": normal(HIDDEN, FFN, residual_std),
            "input_norm": ones(HIDDEN),
            "ffn_norm": ones(HIDDEN),
            "attn_sub_norm": ones(HEADS * HEAD_DIM),
            "ffn_sub_norm": ones(FFN),
        }) for _ in range(LAYERS))
        self.norm = ones(HIDDEN)
        self.embed, self.block, self.head_loss = embed, block, head_loss

    def compile_parts(self):
        """Per block rather than whole: one small graph, compiled once and used ten times."""
        self.embed = torch.compile(embed, dynamic=False)
        self.block = torch.compile(block, dynamic=False, fullgraph=True)
        self.head_loss = torch.compile(head_loss, dynamic=False, fullgraph=True)

    def forward(self, ids, target, cos, sin):
        x = self.embed(ids, self.embedding)
        for layer in self.layers:
            x = self.block(x, cos, sin, *(layer[name] for name in (*LINEARS, *NORMS)))
        return self.head_loss(x, self.norm, self.embedding, target)

    def ternary_parameters(self):
        return [layer[name] for layer in self.layers for name in LINEARS]

    def hf_state_dict(self):
        """The float32 master weights under their Hugging Face names."""
        state = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for i, layer in enumerate(self.layers):
            for name, hf_name in (LINEARS | NORMS).items():
                state[f"model.layers.{i}.{hf_name}.weight"] = layer[name]
        return {name: p.detach().float().cpu() for name, p in state.items()}


def is_ternary(hf_name):
    return any(hf_name.endswith(f".{linear}.weight") for linear in LINEARS.values())
