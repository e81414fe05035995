"""What stops a test that asks the code under test: it raised, it is gone, or it never began."""

MAX_TEXT_CHARS = 4000   # characters of an exception's text
MAX_WORD_CHARS = 200    # of a file's name, or an error's kind
MAX_CALLERS = 100       # lines of a call stack


class Raised(Exception):
    """The learner's code raised.
    Text and place are the child's own words: data, not truth.

    .subject: the Subject that was asked, if known    .call: the Call that raised it, if one did
    .callers: the lines of the same file by which it came to .line, outermost first
    .loading: whether the module itself raised, so that none of it could be asked
    """

    subject = call = None
    loading = False

    def __init__(self, error):
        self.type = str(error.get("type"))[:MAX_TEXT_CHARS]
        self.text = str(error.get("text"))[:MAX_TEXT_CHARS]
        self.kind, self.path = (None if word is None else str(word)[:MAX_WORD_CHARS]
                                for word in (error.get("kind"), error.get("path")))
        self.inside = error.get("inside") is True       # raised in the simulator's own code
        self.line = error["line"] if type(error.get("line")) is int else None
        self.source = str(error.get("source") or "")[:200]
        callers = error.get("callers")
        self.callers = callers[-MAX_CALLERS:] if isinstance(callers, list) else []
        super().__init__(f"{self.type}: {self.text}")


class Stopped(Exception):
    """The child is gone or has been stopped: .why is died, hung, flooded, garbled or full.

    .stack: [(file, line)] where one that hung or crashed was, innermost first
    .subject, .call: as in Raised
    """

    subject = call = None

    def __init__(self, why, text, stack=()):
        self.why, self.stack = why, stack
        super().__init__(text)


class NotStarted(RuntimeError):
    """The machine has no process for the code under test: the answer is not at fault."""


class RankFault(Stopped):
    """Ranks that do not fit each other. .mistake: its id, as of lab/remote/ledger.py
    .rank: the one that it begins with"""

    def __init__(self, mistake, text, rank):
        super().__init__(str(mistake), str(text)[:MAX_TEXT_CHARS])
        self.mistake = str(mistake)
        self.rank = rank
