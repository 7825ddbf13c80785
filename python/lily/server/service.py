"""What all routes of one server share."""

from __future__ import annotations

from .admission import Admission
from .errors import ApiError
from .host import EngineHost, EngineMaker
from .ledger import Ledger
from .metrics import Metrics
from .options import ServerOptions


class Service:
    def __init__(self, make_engine: EngineMaker, options: ServerOptions) -> None:
        self.options = options
        self.host = EngineHost(make_engine)
        self.admission = Admission(options.max_queue)
        self.metrics = Metrics(self.host, self.admission)
        self.ledger = Ledger(self.metrics)

    def check_model(self, model: str | None) -> str:
        """The name to answer with. Raises ApiError 404 for a model that is not served here."""
        names = self.options.served_model_names
        if model is None:
            return names[0]
        if model not in names:
            served = ", ".join(map(repr, names))
            raise ApiError(
                404,
                f"the model {model!r} is not served here, but {served}; --served-model-name adds names",
                code="model_not_found",
                param="model",
            )
        return model
