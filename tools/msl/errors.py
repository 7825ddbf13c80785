"""What goes wrong with a shader."""


class ShaderError(Exception):
    """A shader that does not compile; the message has lines `FILE:LINE[:COLUMN]: error: ...`."""
