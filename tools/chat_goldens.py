#!/usr/bin/env python3
"""Writes tests/data/chat/goldens.json: what transformers makes of conversations with the templates of
tests/data/chat/templates.json, as text and as ids. See tests/data/chat/README.md.

usage: tools/chat_goldens.py        (needs: pip install transformers jinja2 tokenizers)
"""
import datetime
import json
import pathlib
import struct

import transformers
import transformers.utils.chat_template_utils as chat_template_utils
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "chat"
NOW = datetime.datetime(2026, 3, 7, 8, 9, 10)


class FrozenDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


# {0}, {1}, ... stand for the special tokens of the template.
CONVERSATIONS = [
    [user("Hello, how are you?")],
    [system("You are a terse assistant."), user("Hi")],
    [user("Hi"), assistant("Hello!"), user("What is 2 + 2?")],
    [system("Answer in rhyme."), user("Hi"), assistant("Oh my, hi!"), user("Again"),
     assistant("Amen."), user("Thanks")],
    [user("  blanks before and behind \t")],
    [user("\n\nlines\n\n\nbetween and behind\n"), assistant(" \n an answer \n "), user("\n")],
    [user("")],
    [system(""), user(" ")],
    [user("naïve café — 東京 🦙🏽 é \u00a0no-break\u3000wide\u2003em\u200b\u2028"),
     assistant("ÄÖÜ ß İı \u0301combining"), user("\u00a0edges\u3000")],
    [user("{{ bos_token }} {% raise %} {# no #} 'quotes' \"double\" \\n \\ \\\\ {{ '{{' }}")],
    [user("a\r\nb\rc\x0bd\x0ce\x1cf\x1fg\x85h")],
    [user("tabs\tand   runs of     blanks, 1234567890, x=y; <b>&amp;</b> [INST] <<SYS>>")],
    [assistant("I speak first."), user("Fine.")],
    [user("one"), user("two in a row")],
    [user("ends with the answer"), assistant("This one.")],
    [user("Hi"), system("a system message in the middle"), user("Well?")],
    [user("<think>\nhm\n</think> <tool_call>x</tool_call>"),
     assistant("<think>\nLet me see.\n</think>\n\nDone."), user("<tool_response>4</tool_response>")],
    [user("stop {0}here{1} {2}{0}")],
    [system("{1}"), user("{0}{1}"), assistant("a {0}\n{1}b"), user(" {0} ")],
    [user("almost: {0:.-1} {1:.1} < | {0:.-2}|>{1:.-1}")],
]


def fill(conversation, special):
    """Puts the special tokens into the places {n}; {n:.k} is the token without its first k or
    last -k characters."""
    def text_of(text):
        for n in range(3):
            token = special[n % len(special)]
            text = text.replace("{%d}" % n, token)
            text = text.replace("{%d:.-1}" % n, token[:-1]).replace("{%d:.-2}" % n, token[:-2])
            text = text.replace("{%d:.1}" % n, token[1:])
        return text
    return [{"role": m["role"], "content": text_of(m["content"])} for m in conversation]


def demo_tokenizer_json():
    """The tokenizer.json inside of the demo model (docs/format.md)."""
    data = (ROOT / "model" / "demo" / "storyteller.tmac2").read_bytes()
    size = struct.unpack_from("<Q", data, 16)[0]
    metadata = json.loads(data[32:32 + size].rstrip(b" "))
    section = next(s for s in metadata["sections"] if s["name"] == "tokenizer.json")
    return data[section["offset"]:section["offset"] + section["bytes"]].decode()


def tokenizer_for(spec, names):
    """The demo model's tokenizer with the template's special tokens, under the names given."""
    text = demo_tokenizer_json()
    for token in spec["special"]:
        text = text.replace(json.dumps(token), json.dumps(names[token]))
    tokenizer = Tokenizer.from_str(text)
    tokenizer.add_special_tokens([names[token] for token in spec["special"]])
    template = spec["template"]
    for token in spec["special"]:
        template = template.replace(token, names[token])
    kwargs = {key: names[spec[key]] for key in ("bos_token", "eos_token") if spec[key]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **kwargs)


def main():
    chat_template_utils.datetime = FrozenDatetime
    result = {"transformers": transformers.__version__, "now": NOW.isoformat(), "templates": {}}
    specs = json.loads((DATA / "templates.json").read_text())
    for name, spec in specs.items():
        # With secret names for the special tokens, nothing that a message says can be one: the ids
        # are those of a prompt in which contents are plain text.
        own = {token: token for token in spec["special"]}
        secret = {token: "\uE000%d\uE001" % i for i, token in enumerate(spec["special"])}
        tokenizers = [tokenizer_for(spec, own), tokenizer_for(spec, secret)]
        cases = []
        for conversation in CONVERSATIONS:
            messages = fill(conversation, spec["special"])
            for add_generation_prompt in (True, False):
                case = {"messages": messages, "add_generation_prompt": add_generation_prompt}
                try:
                    text, hidden = (t.apply_chat_template(
                        messages, tokenize=False, add_generation_prompt=add_generation_prompt)
                        for t in tokenizers)
                except Exception as error:  # raise_exception(), or a fault of the template
                    case["refused"] = str(error)
                else:
                    case["text"] = text
                    parsed, plain = (t(x, add_special_tokens=False)["input_ids"]
                                     for t, x in zip(tokenizers, (text, hidden)))
                    case["ids"] = plain
                    if plain != parsed:
                        case["ids_parsed"] = parsed
                cases.append(case)
        result["templates"][name] = {"cases": cases}
    # Single features of the language, not of any model's template.
    messages = [system(" Be brief. "), user("Hi é"), assistant("Hello\n")]
    result["snippets"] = []
    for snippet in json.loads((DATA / "snippets.json").read_text()):
        case = {"messages": messages, "template": snippet}
        try:
            case["text"] = chat_template_utils._compile_jinja_template(snippet).render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True,
                bos_token="<s>", eos_token="</s>")
        except Exception as error:
            case["refused"] = str(error)
        result["snippets"].append(case)
    lines = json.dumps(result, ensure_ascii=True, indent=None, separators=(",", ":"))
    (DATA / "goldens.json").write_text(lines.replace('{"messages"', '\n{"messages"') + "\n")


main()
