"""From what a caller asks to a Generation that is checked: prompts, sampling, grammars and budgets of a request."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final, Unpack

import numpy as np

from .answer import AnswerRules, ResponseFormat, ToolChoice, answer_rules
from .calls import OPEN
from .chat_template import ChatTemplate, RenderedPrompt
from .config import ModelConfig
from .errors import ChatTemplateError
from .generation import Generation
from .grammar import Grammar, GrammarCompiler, params_grammar
from .guide import Guide
from .messages import Message, Tool
from .params import MAX_SEED, SamplingOverrides, SamplingParams, merged_params, resolve
from .parse import ReplyParser
from .reasoning import Reasoning, read_reasoning
from .session import context_length_error
from .thinking import ThinkingBudget, bridge_ids, opens_thinking
from .token_ids import check_token_ids
from .tokenizer import LONG_TEXT, Tokenizer
from .tools import ToolLike, as_tools, parameters_by_name

Prompt = str | Sequence[int]

_log: Final = logging.getLogger("lily")


class ChatOptions(SamplingOverrides, total=False):
    """The keywords of `chat`, for its twins."""

    tools: Sequence[ToolLike] | None
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool
    response_format: ResponseFormat | None
    reasoning: Reasoning | None


class Planner:
    """Checks requests to one model before any work. From any thread."""

    def __init__(
        self,
        model: str,
        config: ModelConfig,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        max_context: int,
    ) -> None:
        self._model = model
        self._config = config
        self._tokenizer = tokenizer
        self._text_table = tokenizer.text_table()
        self._grammars = GrammarCompiler(tokenizer)
        self._chat_template = chat_template
        self._max_context = max_context

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None,
        *,
        tools: Sequence[ToolLike] | None = None,
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool = True,
        response_format: ResponseFormat | None = None,
        reasoning: Reasoning | None = None,
        **overrides: Unpack[SamplingOverrides],
    ) -> tuple[Generation, ReplyParser]:
        """The request that answers a conversation, and what reads its text. Raises as `Engine.chat`."""
        given = merged_params(params, overrides)
        if given.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs is of generate and stream; pass the result of render to one of them")
        enable_thinking, budget = read_reasoning(reasoning)
        if budget is not None:
            if given.thinking_token_budget not in (None, budget):
                raise ValueError(
                    f"reasoning={reasoning!r} is a budget of {budget} tokens, but thinking_token_budget is "
                    f"{given.thinking_token_budget}; give one of them"
                )
            given = replace(given, thinking_token_budget=budget)
        described = as_tools(tools)
        rendered = self.render(messages, described, enable_thinking)
        self._check_room(rendered, given.max_tokens or 1)
        rules = answer_rules(
            given,
            tools=described,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
            template_source=self._chat_template.source if self._chat_template else "",
        )
        plan = self.plan(rendered.token_ids(self._tokenizer), given, rules)
        tools_by_name = parameters_by_name(described) if rules.allows_calls else None
        parser = ReplyParser(inside=rendered.opens_reasoning, tools=tools_by_name)
        return plan, parser

    def prompt_ids(self, prompt: Prompt, max_tokens: int = 1) -> Sequence[int]:
        """Token ids of a prompt; warns of control tokens that are written as text.

        Raises ContextLengthError for a text that cannot fit beside max_tokens, before tokens are made of it: that takes
        seconds where it is many times too long.
        """
        if not isinstance(prompt, str):
            return prompt
        self._check_room(prompt, max_tokens)
        if not isinstance(prompt, RenderedPrompt) and (control := self._tokenizer.find_special(prompt)):
            _log.warning(
                "the prompt holds %r as text, which the model does not read as a control token; "
                "pass the result of render as it is, or tokenize(prompt, allow_special=True)",
                control,
            )
        return tokenize(self._tokenizer, prompt)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, enable_thinking: bool | None
    ) -> RenderedPrompt:
        """The prompt of a conversation. Raises ChatTemplateError."""
        if self._chat_template is None:
            raise ChatTemplateError(f"{self._model} has no chat template: pass chat_template to Engine, or generate")
        return self._chat_template.render(messages, tools=tools, enable_thinking=enable_thinking)

    def plan(self, token_ids: Sequence[int], params: SamplingParams, rules: AnswerRules | None = None) -> Generation:
        """Check everything about a request before any work. Raises ContextLengthError, ValueError."""
        prompt = check_token_ids(token_ids, self._config.vocab_size)
        if not len(prompt):
            raise ValueError("the prompt has no tokens")
        room = self._max_context - len(prompt)
        max_tokens = max(room, 1) if params.max_tokens is None else params.max_tokens
        if max_tokens > room:
            raise context_length_error(len(prompt), max_tokens, self._max_context, self._config.max_position_embeddings)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias or ())
        rules = rules or AnswerRules(grammar=params_grammar(params))
        own = () if params.ignore_eos else self._config.stop_token_ids
        stop_token_ids = frozenset(own) | frozenset(params.stop_token_ids)
        return Generation(
            prompt_token_ids=prompt,
            sampling=resolve(params, self._config.sampling_defaults),
            max_tokens=max_tokens,
            seed=secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed,
            stop_token_ids=stop_token_ids,
            id_to_bytes=self._text_table,
            token_bytes=self._tokenizer.id_to_bytes,
            submitted=perf_counter(),
            guide=self._guide(prompt.tolist(), params, rules.grammar, stop_token_ids),
            forbidden_token_ids=self._forbidden(rules),
        )

    def least_tokens(self, prompt: Prompt) -> int:
        """A number that the tokens of a long text cannot be below; 1 for others, whose own number is found soon."""
        return self._tokenizer.least_tokens(prompt) if isinstance(prompt, str) and len(prompt) >= LONG_TEXT else 1

    def _check_room(self, prompt: str, max_tokens: int) -> None:
        least = self.least_tokens(prompt)
        if least > 1 and least + max_tokens > self._max_context:
            raise context_length_error(
                least, max_tokens, self._max_context, self._config.max_position_embeddings, at_least=True
            )

    def _check_ids(self, name: str, token_ids: Iterable[int]) -> None:
        size = self._config.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < size:
                raise ValueError(
                    f"{name} holds the token id {token_id}, outside of the vocabulary of {size} (0 to {size - 1})"
                )

    def _forbidden(self, rules: AnswerRules) -> frozenset[int]:
        call = self._tokenizer.added_tokens.get(OPEN) if rules.forbids_calls else None
        return frozenset() if call is None else frozenset({call})

    def _guide(
        self, prompt: Sequence[int], params: SamplingParams, grammar: Grammar | None, stop_token_ids: frozenset[int]
    ) -> Guide | None:
        if grammar is None and params.thinking_token_budget is None:
            return None
        inside = opens_thinking(prompt, self._tokenizer)
        matcher = budget = None
        if grammar is not None:
            matcher = self._grammars.matcher(grammar.after_thinking() if inside else grammar, stop_token_ids)
        if params.thinking_token_budget is not None:
            bridge = bridge_ids(self._tokenizer)
            budget = ThinkingBudget(params.thinking_token_budget, bridge, self._text_table, inside=inside)
        return Guide(self._config.vocab_size, grammar=matcher, budget=budget)


def tokenize(tokenizer: Tokenizer, text: str, *, allow_special: bool = False) -> list[int]:
    """Token ids of text; that of `render` remembers its control tokens."""
    if isinstance(text, RenderedPrompt):
        return text.token_ids(tokenizer)
    return tokenizer.encode(text, allow_special=allow_special)


def is_single(prompt: object) -> bool:
    """Whether this is one prompt, not a list of them. Raises TypeError for what is neither."""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, (Sequence, np.ndarray)):
        raise TypeError(f"a prompt is text or token ids, or a list of either, not {type(prompt).__name__}")
    return len(prompt) == 0 or not isinstance(prompt[0], (Sequence, np.ndarray))
