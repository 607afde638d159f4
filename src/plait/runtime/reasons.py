"""Why a wait for other ranks failed, in words: the library's own texts are about sockets."""


def reason_of(error: RuntimeError) -> str:
    """The reason of a failed send, receive or sum, for people."""
    text = str(error)
    if "imeout" in text or "imed out" in text:
        return "the time-out passed; is it alive, or stuck in a slower step? (raise the time-out if it is only slow)"
    if any(sign in text for sign in ("closed", "reset", "refused", "Broken pipe", "peer")):
        return "it has gone (its own message says why)"
    return text.splitlines()[0]
