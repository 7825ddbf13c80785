"""The text of a sample, the same as chat_template.jinja makes."""

import json

TOOL_HELP = (
    "\n</tools>\n\nTo call a function, reply in this form and add nothing after"
    " it:\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def call_text(c):
    f = c["function"]
    s = f"<tool_call>\n<function={f['name']}>\n"
    for k, v in f["arguments"].items():
        s += f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}\n</parameter>\n"
    return s + "</function>\n</tool_call>"


def reply_text(m):
    t = m.get("content") or ""
    if m.get("tool_calls"):
        t += ("\n\n" if t else "") + "\n".join(call_text(c) for c in m["tool_calls"])
    return t


def pieces(s, compact=False):
    """-> [(text, learn)]: learn is True for what the model has to write itself."""
    ms, out = s["messages"], []
    head = ms[0]["content"] if ms[0]["role"] == "system" else ""
    if s.get("tools"):
        sep = (",", ":") if compact else None
        t = (
            "<|im_start|>system\n# Tools\n\nYou can call these functions:\n\n<tools>"
            + "".join("\n" + json.dumps(x, ensure_ascii=False, separators=sep) for x in s["tools"])
            + TOOL_HELP
        )
        out.append((t + ("\n\n" + head if head else "") + "<|im_end|>\n", False))
    elif head:
        out.append((f"<|im_start|>system\n{head}<|im_end|>\n", False))
    last = max(i for i, m in enumerate(ms) if m["role"] == "user")
    for i, m in enumerate(ms):
        if m["role"] == "user":
            out.append((f"<|im_start|>user\n{m['content']}<|im_end|>\n", False))
        elif m["role"] == "tool":
            a = "<|im_start|>user" if ms[i - 1]["role"] != "tool" else ""
            z = "<|im_end|>\n" if i + 1 == len(ms) or ms[i + 1]["role"] != "tool" else ""
            out.append((f"{a}\n<tool_response>\n{m['content']}\n</tool_response>{z}", False))
        elif m["role"] == "assistant":
            if i > last:
                th = m.get("reasoning_content", "")
                if s["thinking"]:
                    out += [
                        ("<|im_start|>assistant\n<think>\n", False),
                        (th + "\n</think>\n\n" + reply_text(m) + "<|im_end|>", True),
                        ("\n", False),
                    ]
                else:
                    out += [
                        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
                        (reply_text(m) + "<|im_end|>", True),
                        ("\n", False),
                    ]
            else:
                out.append((f"<|im_start|>assistant\n{reply_text(m)}<|im_end|>\n", False))
    return out
