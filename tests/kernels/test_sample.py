"""sample_scan and sample_pick together: adjustments, truncation, the draw, log-probs, and what they write back."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.harness import (
    BIAS_ENTRY,
    NANO,
    NO_SAMPLE,
    SAMPLE_BLOCK,
    SAMPLE_RESULT,
    SAMPLE_ROW,
    Run,
    normal,
    pack,
    rms_ratio,
    step_rows,
    unwritten,
)
from tests.oracles import sample as oracle
from tests.oracles.sample import Sampling

IN_PROMPT = 0x80000000


class Sampled:
    """One run of both kernels; row i reads timeline i, sample row i, and writes token slot i."""

    def __init__(self, run: Run, logits, rows, positions=None, num_logprobs=0, wants_logprob=1, sample_rows=None):
        count, vocab = logits.shape
        words, blocks = -(-vocab // 32), -(-vocab // 1024)
        positions = np.arange(count) + 10 if positions is None else positions
        self.step = step_rows(count, position=positions, timeline=np.arange(count), wants_logits=1,
                              sample_row=np.arange(count) if sample_rows is None else sample_rows)  # fmt: skip
        table, mask = np.zeros(count, SAMPLE_ROW), np.zeros((count, words), np.uint32)
        self.counts, bias = np.zeros((count, vocab), np.uint32), []
        for i, s in enumerate(rows):
            row = table[i]
            for name in ("temperature", "top_p", "min_p", "top_k",
                         "presence_penalty", "frequency_penalty", "repetition_penalty"):  # fmt: skip
                row[name] = getattr(s, name)
            row["uses_counts"] = bool(s.in_prompt or s.in_output)
            row["seed_low"], row["seed_high"] = s.seed & 0xFFFFFFFF, s.seed >> 32
            row["num_logprobs"], row["wants_logprob"] = num_logprobs, wants_logprob
            row["bias_begin"], row["bias_end"] = len(bias), len(bias) + len(s.bias)
            row["uses_mask"], row["token_slot"] = s.allowed is not None, i
            bias += s.bias
            if s.allowed is not None:
                bits = np.packbits(np.pad(s.allowed, (0, words * 32 - vocab)), bitorder="little")
                mask[i] = bits.view(np.uint32)
            for token, n in s.in_output.items():
                self.counts[i, token] = n
            for token in s.in_prompt:
                self.counts[i, token] |= IN_PROMPT
        self.counts_before = self.counts.copy()
        entries = np.array([*bias, (0, 0)], BIAS_ENTRY)
        sizes = NANO | {"vocab_size": vocab}
        self.adjusted, self.blocks = unwritten(count, vocab), np.zeros((count, blocks), SAMPLE_BLOCK)
        self.tokens, self.results = np.full(count, 77777, np.uint32), np.zeros(count, SAMPLE_RESULT)
        self.results["token_id"] = 88888
        scan = [self.step, table, logits, self.counts, entries, mask, self.adjusted, self.blocks]
        run("sample_scan_f32", sizes, pack(count), scan, (vocab, count, 1))
        pick = [self.step, table, logits, self.adjusted, self.blocks, self.counts, self.tokens, self.results]
        run("sample_pick_f32", sizes, pack(count), pick, (count, 1, 1))


def distribution(vocab, seed, sharpness=3.0, ties=False):
    logits = normal(np.random.default_rng(seed), 1, vocab, scale=sharpness)
    return np.round(logits) if ties else logits


def check(run, logits, rows, positions=None):
    got = Sampled(run, logits, rows, positions)
    for i, s in enumerate(rows):
        expected = oracle.draw(logits[i], s, int(got.step["position"][i]))
        assert got.results["token_id"][i] == expected == got.tokens[i], s
    return got


def test_philox_known_answers():
    """Random123's published vectors: the oracle's generator is the named one."""
    assert oracle.philox4x32([0, 0], [0] * 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = oracle.philox4x32([0xFFFFFFFF] * 2, [0xFFFFFFFF] * 4)
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("seed, position, word", [(0, -1, 0x6627E8D5), (0, 99, None), (0xFFFFFFFF_FFFFFFFF, 5, None)])
def test_the_draw_is_philox_keyed_by_seed_and_position(run: Run, seed, position, word):
    """Over a uniform distribution of 2^k tokens the drawn id is the leading bits of the random word."""
    if word is None:
        word = oracle.philox4x32([seed & 0xFFFFFFFF, seed >> 32], [position + 1, 0, 0, 0])[0]
    got = Sampled(run, np.zeros((1, 4096), np.float32), [Sampling(seed=seed)], positions=[position % 2**32])
    assert got.tokens[0] == word >> 20


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.6}, {"temperature": 1.7, "top_k": 12}, {"top_p": 0.8}, {"temperature": 0.9, "min_p": 0.05}],
    ids=str,
)
def test_draws_have_the_distribution(run: Run, options):
    """Pearson's chi-square of 4,000 draws, at seeds and positions that are fixed: below its mean + 5 deviations."""
    num_rows, num_runs = 100, 40
    logits = distribution(30, 3, sharpness=0.8)
    order, p = oracle.survivors(oracle.adjust(logits[0], Sampling(**options)), Sampling(**options))
    expected = np.zeros(30)
    expected[order] = p / p.sum() * num_rows * num_runs
    counts = np.zeros(30)
    for number in range(num_runs):
        rows = [Sampling(seed=1000 * number + row, **options) for row in range(num_rows)]
        got = Sampled(run, np.repeat(logits, num_rows, axis=0), rows, positions=np.arange(num_rows) + number)
        np.add.at(counts, got.tokens, 1)
    assert (counts[expected == 0] == 0).all()
    common = expected >= 5  # the test's approximation needs that
    seen = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    assert freedom >= 3
    assert ((seen - wanted) ** 2 / wanted).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("vocab", [1, 3, 1023, 1024, 1025, 5000])
def test_greedy_takes_the_lowest_id_among_equals(run: Run, vocab):
    logits = distribution(vocab, vocab, ties=True)
    settings_that_do_not_matter = Sampling(temperature=0, top_k=1, top_p=0.1, min_p=0.9, seed=vocab)
    check(run, logits, [Sampling(temperature=0)])
    check(run, logits, [settings_that_do_not_matter])


TRUNCATIONS = [
    {}, {"top_k": 1}, {"top_k": 20}, {"top_k": 4000}, {"top_p": 0.0}, {"top_p": 0.3}, {"top_p": 0.95},
    {"min_p": 0.1}, {"min_p": 1.0}, {"top_k": 50, "top_p": 0.8}, {"top_k": 50, "min_p": 0.05, "top_p": 0.9},
    {"min_p": 0.02, "top_p": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_truncated_draws(run: Run, truncation, temperature, ties):
    rows = [Sampling(temperature=temperature, seed=seed << 31, **truncation) for seed in range(8)]
    logits = np.concatenate([distribution(4500, seed, ties=ties) for seed in range(8)])
    check(run, logits, rows)


def test_every_survivor_is_drawn_and_nothing_else(run: Run):
    """A flat distribution of 5 survivors: 400 draws reach exactly those."""
    logits = distribution(2000, 1)
    s = Sampling(temperature=5.0, top_k=5)
    allowed, _ = oracle.survivors(oracle.adjust(logits[0], s), s)
    drawn = set()
    for begin in range(0, 400, 8):
        rows = [dataclasses.replace(s, seed=seed) for seed in range(begin, begin + 8)]
        drawn |= set(Sampled(run, np.repeat(logits, 8, 0), rows).tokens.tolist())
    assert drawn == set(allowed.tolist())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocab=st.sampled_from([2, 33, 1000, 1023, 1024, 1025, 2600]),  # a GPU compiles its kernels for each
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0, 50.0]),
    top_k=st.integers(0, 100),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.2]),
    ties=st.booleans(),
)
def test_any_parameters(run: Run, vocab, seed, temperature, top_k, top_p, min_p, ties):
    s = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    check(run, distribution(vocab, seed % 1000, ties=ties), [s])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_mask_and_penalties(run: Run, temperature):
    vocab, rng = 3000, np.random.default_rng(4)
    logits = np.concatenate([distribution(vocab, seed) for seed in range(6)])
    allowed = rng.random(vocab) < 0.2
    seen = frozenset(np.argsort(-logits[3])[:50].tolist())
    output = {int(token): n + 1 for n, token in enumerate(np.argsort(-logits[4])[:60])}
    rows = [
        Sampling(temperature=temperature, bias=[(7, 30.0), (2999, 40.0)]),
        Sampling(temperature=temperature, bias=[(int(logits[1].argmax()), -np.inf), (7, 1.0), (7, 2.0)]),
        Sampling(temperature=temperature, allowed=allowed),
        Sampling(temperature=temperature, in_prompt=seen, repetition_penalty=1.7),
        Sampling(temperature=temperature, in_output=output, frequency_penalty=0.3, presence_penalty=1.1),
        Sampling(temperature=temperature, in_prompt=frozenset([1, 2]), in_output={2: 3, 5: 1}, repetition_penalty=0.5,
                 frequency_penalty=-0.5, presence_penalty=0.25, bias=[(9, 3.0)], allowed=allowed),
    ]  # fmt: skip
    got = check(run, logits, rows)
    for i, s in enumerate(rows):
        reference = oracle.adjust(logits[i], s)
        finite = reference > -np.inf
        assert rms_ratio(got.adjusted[i][finite], reference[finite]) < 1e-6
        assert not (got.adjusted[i][~finite] > -1e30).any()
    drawn = np.zeros_like(got.counts)
    for i, s in enumerate(rows):
        drawn[i, got.tokens[i]] = bool(s.in_prompt or s.in_output)
    np.testing.assert_array_equal(got.counts, got.counts_before + drawn)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_when_nothing_is_allowed_no_token_is_named(run: Run, temperature):
    s = Sampling(temperature=temperature, allowed=np.zeros(2000, bool), in_prompt=frozenset([3]))
    got = Sampled(run, distribution(2000, 1), [s], num_logprobs=2)
    assert got.results["token_id"][0] == NO_SAMPLE and got.tokens[0] == 77777
    np.testing.assert_array_equal(got.counts, got.counts_before)


def test_rows_without_a_sample_row_are_left_alone(run: Run):
    logits = np.concatenate([distribution(1500, 1), distribution(1500, 2)])
    got = Sampled(run, logits, [Sampling(), Sampling()], sample_rows=[NO_SAMPLE, 1])
    assert got.results["token_id"].tolist() == [88888, oracle.draw(logits[1], Sampling(), 11)]
    assert got.tokens[0] == 77777 and np.isnan(got.adjusted[0]).all()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [5, 1024, 9000])
@pytest.mark.parametrize("num_logprobs", [0, 1, 20])
def test_logprobs_are_of_the_raw_logits(run: Run, vocab, num_logprobs, ties):
    logits = distribution(vocab, 3, ties=ties)
    s = Sampling(bias=[(0, 100.0)], temperature=0.5)
    got = Sampled(run, logits, [s], num_logprobs=num_logprobs).results[0]
    reference, count = oracle.log_softmax(logits[0]), min(num_logprobs, vocab)
    assert got["token_id"] == 0 and got["num_logprobs"] == count
    np.testing.assert_allclose(got["logprob"], reference[0], rtol=1e-6, atol=1e-6)
    top = np.argsort(-logits[0], kind="stable")[:count]
    np.testing.assert_array_equal(got["top_ids"][:count], top)
    np.testing.assert_allclose(got["top_logprobs"][:count], reference[top], rtol=1e-6, atol=1e-6)


def test_blocks_hold_what_they_say(run: Run):
    logits = distribution(2500, 5, ties=True)
    got = Sampled(run, logits, [Sampling(bias=[(2400, 50.0)])])
    for b, (raw_max, raw_sum, best, best_id) in enumerate(got.blocks[0]):
        raw, adjusted = (x[0, 1024 * b : 1024 * (b + 1)] for x in (logits, got.adjusted))
        assert (raw_max, best, best_id) == (raw.max(), adjusted.max(), 1024 * b + adjusted.argmax())
        np.testing.assert_allclose(raw_sum, np.exp(raw.astype(np.float64) - raw.max()).sum(), rtol=1e-6)


def test_the_real_vocabulary(run: Run):
    logits = np.concatenate([distribution(248320, seed, sharpness=2.5) for seed in range(4)])
    rows = [Sampling(temperature=0.7, top_k=20, top_p=0.8, seed=5), Sampling(top_p=0.95, seed=6), Sampling(seed=7),
            Sampling(temperature=0)]  # fmt: skip
    check(run, logits, rows)
