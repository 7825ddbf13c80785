"""What lily does, on the small model that comes with it: a chat, an answer as JSON, tokens per second."""

import json

from lily import Engine
from lily.messages import Message

DOCUMENT = """\
Ticket: BUG-2275
Owner: Hana Patel
Priority: high
Status: waiting

The old register stores the weekly list because the shelves are nearly full.

The project group checks the weekly list and leaves a note on the table.

After the morning meeting, the second team copies the weekly list.

Ticket BUG-8293 is owned by Fatima Garcia; its priority is medium and its status is in progress.

The new assistant checks the spare keys after the morning meeting, but never without a second signature."""


def chat(engine: Engine) -> None:
    """Two turns; the answers are printed as they are made."""
    messages: list[Message] = []
    for question in ("Who are you?", "What is a compiler?"):
        print(f"user       {question}\nassistant  ", end="")
        messages.append({"role": "user", "content": question})
        answer = ""
        for chunk in engine.stream_chat(messages, reasoning=False, temperature=0):
            print(chunk.content, end="", flush=True)
            answer += chunk.content
        print()
        messages.append({"role": "assistant", "content": answer})


def extract(engine: Engine) -> None:
    """Facts of one ticket out of a document that mentions two."""
    question = "Give owner, priority, status of ticket BUG-8293."
    prompt = f"Answer only from the document. Reply in JSON.\n\nDocument:\n{DOCUMENT}\n\nQuestion: {question}"
    reply = engine.chat([{"role": "user", "content": prompt}], reasoning=True, temperature=0)
    print(f"user       {question}")
    print(f"reasoning  {reply.reasoning}")
    print(f"as JSON    {json.dumps(json.loads(reply.content), indent=2)}")


def speed(engine: Engine) -> None:
    """One run on a machine that may be busy; `make bench` measures properly."""
    done = engine.generate(engine.tokenize(DOCUMENT * 3), max_tokens=64, ignore_eos=True, temperature=0)
    print(f"prefill    {done.usage.prompt_tokens} tokens, {done.timing.prefill_tokens_per_second:,.0f} tok/s")
    print(f"decode     {done.usage.completion_tokens} tokens, {done.timing.decode_tokens_per_second:,.0f} tok/s")


def main() -> None:
    with Engine("lily-nano", max_context=4096) as engine:
        print(engine, end="\n\n")
        for part in (chat, extract, speed):
            part(engine)
            print()


if __name__ == "__main__":
    main()
