"""What graders of ranks say: what is wrong, with the reason."""

from lab.judge.mistakes import Message, mistake


def because(name: str, text: str, why: str) -> Message:
    """The message of an assertion: what is wrong, then why."""
    return mistake(name, f"{text}: {why}", why)
