"""Sessions and a prefix cache on a small random checkpoint, without the tokenizer that an engine needs."""

import numpy as np

from lily.owner import Owner
from lily.prefix_cache import PrefixCache
from lily.session import Session
from tests.model.replay import TracedRuntime
from tests.model.support import load

BORDER = 500  # the token that starts a message here
FINGERPRINTS = {"model": "rig"}


class Rig:
    def __init__(self, folder, *, disk=None, progress=False, traced=False, **options):
        if options.get("device", "cpu") == "cpu":  # one thread: for so small a model more cost time
            options = {"debug": "shuffled"} | options
        self.runtime = load(folder, **options)
        if traced:
            self.runtime = TracedRuntime(self.runtime)
        self.disk = disk
        self.owner = Owner("rig")
        self.owner.at_exit(self.runtime.close)
        self.cache = PrefixCache(self.owner, self.runtime, border_token_id=BORDER, disk=disk)
        self.progress = progress

    def session(self):
        return Session(
            self,
            self.owner,
            self.runtime,
            vocab_size=512,
            max_context=self.runtime.max_context,
            model_context=None,
            progress=self.progress,
            cache=self.cache if self.cache.enabled else None,
            fingerprints=lambda: FINGERPRINTS,
        )

    def reused(self, token_ids):
        """Prefill in a new session: how much was reused, and the logits."""
        with self.session() as session:
            return session.prefill(token_ids), session.logits.copy()

    def close(self):
        self.owner.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def tokens(seed, length):
    """Token ids below BORDER."""
    return np.random.default_rng(seed).integers(0, BORDER, length).tolist()
