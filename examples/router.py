"""A hybrid router: easy questions are answered here, the others go to a larger model elsewhere.

python examples/router.py "Who are you?" "Summarise the legal risks of this merger."

The classifier is the local model itself: `Engine.score` says how likely it finds the question, and what it finds
unlikely it will not answer well. That costs one prefill of a few tokens. For a large model with wide knowledge, score
labels instead: engine.score(prompt, ["simple", "difficult"]).

CLOUD_URL is the base address of any OpenAI-compatible server (http://…/v1), CLOUD_MODEL and CLOUD_KEY belong to it.
Without CLOUD_URL the router only says which questions would leave the machine.
"""

import json
import os
import sys
import urllib.request
from dataclasses import dataclass

from lily import Engine
from lily.messages import Message

THRESHOLD = -4.0  # mean log-probability per token; choose it on questions of your own


@dataclass(frozen=True)
class Answer:
    text: str
    route: str  # "local" or "cloud"
    familiarity: float


class Router:
    """Decides per question, and asks the model that it has chosen."""

    def __init__(self, engine: Engine, threshold: float = THRESHOLD) -> None:
        self._engine = engine
        self._threshold = threshold
        # What stands in front of a user's words in a prompt.
        before, _, _ = engine.render([{"role": "user", "content": "?"}]).partition("?")
        self._start = engine.tokenize(before, allow_special=True)

    def familiarity(self, question: str) -> float:
        """Mean log-probability per token that the local model gives to the question; 0 would be certainty."""
        token_ids = self._engine.tokenize(question)
        (total,) = self._engine.score(self._start, [token_ids])
        return total / len(token_ids)

    def ask(self, question: str) -> Answer:
        familiarity = self.familiarity(question)
        messages: list[Message] = [{"role": "user", "content": question}]
        if familiarity >= self._threshold:
            reply = self._engine.chat(messages, reasoning=False, temperature=0, max_tokens=200)
            return Answer(reply.content, "local", familiarity)
        return Answer(ask_cloud(messages), "cloud", familiarity)


def ask_cloud(messages: list[Message]) -> str:
    """One request to an OpenAI-compatible server."""
    url = os.environ.get("CLOUD_URL")
    if url is None:
        return "(CLOUD_URL is not set: this question would go to the cloud)"
    request = urllib.request.Request(
        f"{url.rstrip('/')}/chat/completions",
        json.dumps({"model": os.environ.get("CLOUD_MODEL", ""), "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('CLOUD_KEY', '')}"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        content: str = json.load(response)["choices"][0]["message"]["content"]
    return content


def main() -> None:
    questions = sys.argv[1:] or ["What is a compiler?", "Which treaty ended the Thirty Years' War?"]
    with Engine("lily-nano", max_context=2048) as engine:
        router = Router(engine)
        for question in questions:
            answer = router.ask(question)
            print(f"{answer.route} ({answer.familiarity:.1f})  {question}\n  {answer.text}")


if __name__ == "__main__":
    main()
